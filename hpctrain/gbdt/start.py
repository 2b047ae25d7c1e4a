"""`Start`: where boosting begins, and what happens after each round from there."""

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
    """What boosting goes on from; nothing without a checkpoint."""

    booster: Any = None
    """Model of the library."""
    features: Features | None = None
    """Those of the model."""
    done: int = 0
    """Rounds of the model."""
    early_stopping: Mapping[str, Any] | None = None
    """What the values of these rounds were like, for `Patience`."""


def find_start(
    boosting: Boosting,
    checkpoint_cls: type[ModelCheckpoint[Any]],
    *,
    count_rounds: Callable[[Any], int],
) -> Start | None:
    """Return where boosting begins, or None if the newest checkpoint leaves nothing to do.

    Collective: then that checkpoint is reported, unless this run has made it.

    Parameters
    ----------
    count_rounds
        Returns the rounds of a model.

    Raises
    ------
    ConfigError
        If the checkpoint has more rounds than are wanted.
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
    """Return what happens after each round. Not collective."""
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
    """Return whether checkpoints are validated: all are, as the loop is hpctrain's own."""
    return active_worker("boosting").validation is not None
