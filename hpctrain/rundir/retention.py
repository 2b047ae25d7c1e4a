"""Which checkpoints are kept. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpctrain.metric_names import find_score_of
from hpctrain.rundir.manifest import Manifest

if TYPE_CHECKING:
    from hpctrain.checkpoint_config import CheckpointConfig


def kept_names(manifests: Sequence[Manifest], config: CheckpointConfig) -> set[str]:
    """Return the names of the checkpoints that a run keeps. Not collective.

    Parameters
    ----------
    manifests
        Oldest first. The last always stays: a restart needs it. So do those whose validation is
        pending, and by score they rank only when it has ended.
    """
    if config.num_to_keep is None and config.keep_every_s is None:
        return {manifest.name for manifest in manifests}
    by_score = config.checkpoint_score_attribute is not None
    pending = [manifest for manifest in manifests if manifest.validation is not None]
    scored = [m for m in manifests if m.validation is None] if by_score else manifests
    ranked = rank_checkpoints(scored, config)
    keep = {manifest.name for manifest in ranked[: config.num_to_keep or 0]}
    keep.update(manifest.name for manifest in (*manifests[-1:], *pending))
    if config.keep_every_s is not None:
        # From the oldest on, so that the choice does not change when others are deleted.
        last = -math.inf
        for manifest in manifests:
            # In either direction: the last may be of a node whose clock was ahead.
            if abs(manifest.created_at - last) >= config.keep_every_s:
                keep.add(manifest.name)
                last = manifest.created_at
    return keep


def rank_checkpoints(manifests: Sequence[Manifest], config: CheckpointConfig) -> list[Manifest]:
    """Return the manifests, best first. Not collective.

    Without a score attribute the newest is best. A missing score, or one that is not finite, is the
    worst.
    """
    attribute = config.checkpoint_score_attribute
    if attribute is None:
        return sorted(manifests, key=lambda m: -m.report)
    sign = 1 if config.checkpoint_score_order == "max" else -1

    def key(manifest: Manifest) -> tuple[bool, float, int]:
        score = find_score_of(manifest.metrics, attribute, report=manifest.report)
        return score is None, 0.0 if score is None else -sign * score, -manifest.report

    return sorted(manifests, key=key)
