"""Which checkpoints are kept. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hpctrain.rundir.manifest import Manifest

if TYPE_CHECKING:
    from hpctrain.config import CheckpointConfig


def kept_names(manifests: Sequence[Manifest], config: CheckpointConfig) -> set[str]:
    """Return the names of the checkpoints that a run keeps. Not collective.

    Parameters
    ----------
    manifests
        Oldest first. The last always stays: a restart needs it.
    """
    if config.num_to_keep is None and config.keep_every_s is None:
        return {manifest.name for manifest in manifests}
    ranked = rank_checkpoints(manifests, config)
    keep = {manifest.name for manifest in ranked[: config.num_to_keep or 0]}
    keep.update(manifest.name for manifest in manifests[-1:])
    if config.keep_every_s is not None:
        # From the oldest on, so that the choice does not change when others are deleted.
        due = -math.inf
        for manifest in manifests:
            if manifest.created_at >= due:
                keep.add(manifest.name)
                due = manifest.created_at + config.keep_every_s
    return keep


def rank_checkpoints(manifests: Sequence[Manifest], config: CheckpointConfig) -> list[Manifest]:
    """Return the manifests, best first. Not collective.

    Without a score attribute the newest is best. A missing or NaN score is the worst.
    """
    if config.checkpoint_score_attribute is None:
        return sorted(manifests, key=lambda m: -m.report)
    sign = 1 if config.checkpoint_score_order == "max" else -1
    attribute = config.checkpoint_score_attribute

    def key(manifest: Manifest) -> tuple[bool, float, int]:
        score = score_of(manifest.metrics, attribute)
        bad = score is None or math.isnan(score)
        return bad, 0.0 if score is None or bad else -sign * score, -manifest.report

    return sorted(manifests, key=key)


def score_of(metrics: Mapping[str, Any], attribute: str) -> float | None:
    """Return the metric that a `CheckpointConfig` names, or None if it is none. Not collective."""
    value: Any = metrics
    for part in attribute.split("/"):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value if isinstance(value, (int, float)) else None
