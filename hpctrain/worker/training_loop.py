"""`TrainingLoop`: the method of a trainer, run as the training function of one rank."""

from __future__ import annotations

import copy
from typing import Any, Protocol

from hpctrain.config import RunConfig
from hpctrain.worker.context import active_worker


class HasLoop(Protocol):
    """A trainer that has the loop itself."""

    run_config: Any
    datasets: dict[str, Any]
    preprocessor: Any
    resume_from_checkpoint: Any

    def setup(self) -> None:
        """Prepare what the loop needs."""

    def preprocess_datasets(self) -> None:
        """Apply the preprocessor to the datasets."""

    def training_loop(self) -> Any:
        """Train."""


class TrainingLoop:
    """Calls ``setup()``, ``preprocess_datasets()`` and ``training_loop()`` of a trainer.

    Parameters
    ----------
    trainer
        Is copied. What a run has anyway is left out of it, and given back on the rank: datasets,
        the preprocessor, which is fitted then, and of the RunConfig the name and the path.
    """

    def __init__(self, trainer: HasLoop) -> None:
        self._trainer = copy.copy(trainer)
        self._trainer.run_config = RunConfig()
        self._trainer.datasets = {}
        self._trainer.preprocessor = self._trainer.resume_from_checkpoint = None

    def __call__(self) -> Any:
        """Run the loop. Not collective: there is one rank."""
        worker = active_worker("training_loop()")
        trainer, context = self._trainer, worker.context
        trainer.run_config = RunConfig(name=context.name, storage_path=context.storage.parent)
        trainer.datasets = {name: _made(dataset) for name, dataset in worker.datasets.items()}
        trainer.preprocessor = worker.preprocessor
        trainer.resume_from_checkpoint = worker.session.checkpoint
        trainer.setup()
        trainer.preprocess_datasets()
        return trainer.training_loop()


def _made(dataset: Any) -> Any:
    return dataset() if callable(dataset) and not hasattr(dataset, "__getitem__") else dataset
