"""`Start`: the model from which boosting begins, and the `Rounds` after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import hpctrain
from hpctrain.gbdt.boosting import Boosting
from hpctrain.gbdt.checkpoint import ModelCheckpoint
from hpctrain.gbdt.features import Features
from hpctrain.gbdt.rounds import Patience, Rounds, Save, read_state, report_again
from hpctrain.worker.context import active_worker


@dataclass(frozen=True, kw_only=True)
class Start:
    """The model from which boosting begins; empty without a checkpoint."""

    booster: Any = None
    """Model of the library."""
    features: Features | None = None
    """Features of the model."""
    done: int = 0
    """Rounds of the model."""
    early_stopping: Mapping[str, Any] | None = None
    """State of `Patience` after these rounds."""


def find_start(
    boosting: Boosting,
    checkpoint_cls: type[ModelCheckpoint[Any]],
    *,
    count_rounds: Callable[[Any], int],
) -> Start | None:
    """Return where boosting begins, or None if the newest checkpoint is finished already.

    Collective. A finished checkpoint is reported, unless this run has made it.

    Parameters
    ----------
    count_rounds
        Returns the rounds of a model.

    Raises
    ------
    ConfigError
        If the checkpoint has more rounds than `num_boost_round`.
    CheckpointError
        If it cannot be read.
    """
    checkpoint = hpctrain.get_checkpoint()
    if checkpoint is None:
        return Start()
    with checkpoint.as_directory() as directory:
        booster, features = checkpoint_cls.load_to_resume(directory)
        state = read_state(directory)
    done = count_rounds(booster)
    if boosting.is_finished(done, is_over=state["is_over"]):
        report_again(checkpoint, state, done=done, validation=_validates())
        return None
    return Start(
        booster=booster, features=features, done=done, early_stopping=state["early_stopping"]
    )


def make_rounds(boosting: Boosting, start: Start, save: Save) -> Rounds:
    """Return the `Rounds` of a boosting loop. Not collective."""
    patience = None
    if boosting.early_stopping is not None:
        patience = Patience(boosting.early_stopping, start.early_stopping)
    return Rounds(
        save=save,
        frequency=boosting.checkpoint_frequency,
        at_end=boosting.checkpoint_at_end,
        patience=patience,
        validation=_validates(),
    )


def _validates() -> bool:
    """Return whether to validate checkpoints: all or none in hpctrain's loop."""
    return active_worker("boosting").validation is not None
