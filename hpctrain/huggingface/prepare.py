"""`prepare_trainer`: lets a `transformers.Trainer` save into the run, and resume from it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hpctrain
from hpctrain.errors import CheckpointError, ConfigError
from hpctrain.huggingface.backend import use_group_of_torch
from hpctrain.huggingface.callback import ReportCallback
from hpctrain.huggingface.rows import (
    EvaluationRows,
    TrainingBatches,
    as_dataset,
    check_shared_out,
    is_ours,
    training_loader,
)
from hpctrain.worker.context import active_worker

if TYPE_CHECKING:
    import transformers
    from torch.utils.data import DataLoader

    from hpctrain.world import World

_STATE_NAME = "trainer_state.json"


def prepare_trainer(trainer: transformers.Trainer) -> transformers.Trainer:
    """Let a `transformers.Trainer` save into the run, resume from it, and read its datasets.

    Not collective. The trainer is changed, and returned. From then on

    * it has a `ReportCallback`, if it was given none;
    * what it saves goes into the commit of the next report, and nothing into ``output_dir``;
      `hpctrain.CheckpointConfig` says how many checkpoints are kept, not ``save_total_limit``;
    * ``train()`` goes on from `hpctrain.get_checkpoint`, if there is one;
      ``train(resume_from_checkpoint=False)`` begins anew;
    * its datasets may be of `hpctrain.data`: what `hpctrain.get_dataset_shard` gave, or a whole
      `hpctrain.data.Dataset`. It shares them out over the ranks, as it does with others.

    Parameters
    ----------
    trainer
        Of every rank, made with the same arguments.

    Raises
    ------
    ConfigError
        If its datasets have been shared out over the ranks already, which the trainer does.
    """
    world = active_worker("prepare_trainer()").context.world
    if trainer.args.world_size != world.world_size:
        raise ConfigError(
            f"the transformers.Trainer sees {trainer.args.world_size} of {world.world_size} ranks. "
            f"Make it inside the training function of a TransformersTrainer or AccelerateTrainer, "
            f"with its TrainingArguments."
        )
    # TrainingArguments made Accelerate forget what it knew of the group.
    use_group_of_torch()
    check_shared_out(trainer.train_dataset, "train_dataset")
    check_shared_out(trainer.eval_dataset, "eval_dataset")
    trainer.eval_dataset = _for_evaluation(trainer.eval_dataset)
    callbacks = trainer.callback_handler.callbacks
    report = next((found for found in callbacks if isinstance(found, ReportCallback)), None)
    if report is None:
        trainer.add_callback(report := ReportCallback())
    trainer.__class__ = _prepared_class(type(trainer), report, world)
    return trainer


def _prepared_class(
    base: type[transformers.Trainer], report: ReportCallback, world: World
) -> type[Any]:
    class PreparedTrainer(base):  # type: ignore[misc]  # the user's own class
        _staging: str | None = None

        def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
            if resume_from_checkpoint is False:
                return super().train(None, *args, **kwargs)
            if resume_from_checkpoint in (None, True):
                checkpoint = hpctrain.get_checkpoint()
                if checkpoint is not None:
                    with checkpoint.as_directory() as directory:
                        _check_resumable(directory)
                        return super().train(directory, *args, **kwargs)
                resume_from_checkpoint = None
            return super().train(resume_from_checkpoint, *args, **kwargs)

        def get_train_dataloader(self) -> DataLoader[Any]:
            if is_ours(self.train_dataset):
                return training_loader(self, rank=world.world_rank, world_size=world.world_size)
            loader: DataLoader[Any] = super().get_train_dataloader()
            return loader

        def num_examples(self, dataloader: DataLoader[Any]) -> int:
            if isinstance(dataloader.dataset, TrainingBatches):
                return dataloader.dataset.num_rows
            return int(super().num_examples(dataloader))

        def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
            with hpctrain.checkpoint_dir() as directory:
                self._staging = directory
                try:
                    super()._save_checkpoint(*args, **kwargs)
                finally:
                    self._staging = None
                report.saved = _flatten(Path(directory))

        def _get_output_dir(self, *args: Any, **kwargs: Any) -> str:
            return self._staging or super()._get_output_dir(*args, **kwargs)

    PreparedTrainer.__name__ = PreparedTrainer.__qualname__ = f"Prepared{base.__name__}"
    return PreparedTrainer


def _for_evaluation(dataset: Any) -> Any:
    if isinstance(dataset, Mapping):
        return {name: _for_evaluation(part) for name, part in dataset.items()}
    return EvaluationRows(as_dataset(dataset)) if is_ours(dataset) else dataset


def _flatten(directory: Path) -> Path:
    """Move what is in ``checkpoint-N/`` one up: the directory is the checkpoint."""
    for folder in directory.glob("checkpoint-*"):
        for path in folder.iterdir():
            os.rename(path, directory / path.name)
        folder.rmdir()
    return directory


def _check_resumable(directory: str) -> None:
    if not Path(directory, _STATE_NAME).exists():
        raise CheckpointError(
            f"{directory} has no {_STATE_NAME}, so no transformers.Trainer can go on from it. Load "
            f"its model yourself, and call train(resume_from_checkpoint=False)."
        )
