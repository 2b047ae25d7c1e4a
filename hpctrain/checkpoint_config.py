"""`CheckpointConfig`: which checkpoints of a run are kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hpctrain.checks import show_changes
from hpctrain.rules import checked, choice, count, kind, optional, or_default, seconds, text


@checked(
    num_to_keep=optional(count(1)),
    checkpoint_score_attribute=optional(text),
    checkpoint_score_order=or_default(choice("max", "min")),
    keep_every_s=optional(seconds),
    checkpoint_frequency=or_default(count(0)),
    checkpoint_at_end=optional(kind(bool)),
)
@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """Which checkpoints are kept."""

    num_to_keep: int | None = None
    """How many; None keeps all, unless `keep_every_s` is given. The newest is never deleted, even
    if it is the worst."""
    checkpoint_score_attribute: str | None = None
    """Metric by which the best are kept; None keeps the newest. ``a/b`` is the metric of that name,
    else ``b`` inside the mapping ``a``. A checkpoint without the metric, or with a score that is
    not finite, ranks last. If the first checkpoint lacks the name, the run ends with an error;
    ``training_iteration`` is the number of the report, unless a metric has this name."""
    checkpoint_score_order: Literal["max", "min"] = "max"
    """Whether large or small scores are better."""
    keep_every_s: float | None = None
    """Seconds. One checkpoint of each such interval is kept permanently, besides the
    `num_to_keep`."""
    checkpoint_frequency: int = 0
    """Rounds, or epochs, between two checkpoints if the trainer runs the loop; 0 is none. A
    training function decides itself when to save."""
    checkpoint_at_end: bool | None = None
    """Whether a trainer that runs the loop saves after the last round. None is yes."""

    __repr__ = show_changes


# Its public home, which pickles and digests name.
CheckpointConfig.__module__ = "hpctrain.config"
