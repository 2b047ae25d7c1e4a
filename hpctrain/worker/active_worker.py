"""`ActiveWorker`: what a rank has while its training function runs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from hpctrain.worker.report import Session
from hpctrain.worker.train_context import TrainContext
from hpctrain.world import Communicator

if TYPE_CHECKING:
    from hpctrain.preprocessors import Preprocessor
    from hpctrain.validation_task_config import ValidationTaskConfig


@dataclass(frozen=True, kw_only=True)
class ActiveWorker:
    """All that the functions of `hpctrain.worker.context` need, while a training function runs."""

    context: TrainContext
    session: Session
    comm: Communicator
    datasets: Mapping[str, Any]
    datasets_to_split: Literal["all"] | Sequence[str]
    iterators: dict[str, Any] = field(default_factory=dict)
    """Those of `hpctrain.data` that were handed out, by name: they know which epoch is next."""
    preprocessor: Preprocessor | None = None
    """Fitted; applied to every dataset."""
    assigned: Mapping[str, Any] | None = None
    """This rank's datasets, where a ``configure()`` of the user's assigns them."""
    validation: ValidationTaskConfig | None = None
    """How checkpoints are validated by default; None if the trainer has no ValidationConfig."""
    pid: int = field(default_factory=os.getpid)
    """Of the worker: a process that it forks has all of this, too."""
