"""`ReportCallback`: reports, saves and stops for Lightning's Trainer."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import hpctrain
from hpctrain.checkpoint import Checkpoint, CheckpointUploadMode
from hpctrain.checks import check_count
from hpctrain.errors import ConfigError
from hpctrain.lightning.checkpoint import CHECKPOINT_NAME, FRAMEWORK
from hpctrain.lightning.package import import_pytorch
from hpctrain.metric_names import PartialMetrics
from hpctrain.predict.features import ModelFeatures
from hpctrain.torch import rng
from hpctrain.torch.device import get_devices

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.callbacks import Checkpoint as CheckpointCallback

    from hpctrain.validation_config import ValidationTaskConfig
else:
    # Of this class, so that all other callbacks have had their turn when a checkpoint is saved.
    CheckpointCallback = import_pytorch("callbacks").Checkpoint


class ReportCallback(CheckpointCallback):
    """Reports each epoch, with a checkpoint to resume from: ``Trainer(callbacks=[...])``.

    What is reported is all that was logged (``self.log()``), and ``epoch`` and ``step``. The
    checkpoint holds ``checkpoint.ckpt``, which is Lightning's own, and the random generators of
    each rank. When the run is to stop, the Trainer's ``fit()`` ends after a checkpoint.

    Parameters
    ----------
    checkpoint_every_n_epochs
        Epochs between two checkpoints; the last epoch always has one. 0 saves none at the end of
        epochs but that.
    checkpoint_every_n_steps
        Optimizer steps between two reports with a checkpoint, within epochs; 0 is none.
    report_every_n_steps
        Optimizer steps between two reports of metrics only. A stop is noticed at reports: set this
        where an epoch takes longer than a job that ends can wait.
    save_weights_only
        Whether checkpoints are for predictions only; they cannot be resumed from then.
    checkpoint_upload_mode
        As in `hpctrain.report`.
    validation
        Whether, and how, checkpoints are validated beside the training, as in `hpctrain.report`.

    Raises
    ------
    ConfigError
        If a count is none.
    """

    CHECKPOINT_NAME = CHECKPOINT_NAME

    def __init__(
        self,
        *,
        checkpoint_every_n_epochs: int = 1,
        checkpoint_every_n_steps: int = 0,
        report_every_n_steps: int = 0,
        save_weights_only: bool = False,
        checkpoint_upload_mode: CheckpointUploadMode = CheckpointUploadMode.SYNC,
        validation: bool | ValidationTaskConfig = False,
    ) -> None:
        super().__init__()
        for name, count in (
            ("checkpoint_every_n_epochs", checkpoint_every_n_epochs),
            ("checkpoint_every_n_steps", checkpoint_every_n_steps),
            ("report_every_n_steps", report_every_n_steps),
        ):
            check_count(f"ReportCallback({name}=...)", count, at_least=0)
        self._every_n_epochs = checkpoint_every_n_epochs
        self._every_n_steps = checkpoint_every_n_steps
        self._report_every_n_steps = report_every_n_steps
        self._save_weights_only = save_weights_only
        self._upload_mode = checkpoint_upload_mode
        self._validation = validation
        self._step = 0
        self._is_stopping = False
        self._has_validated = False
        self._sigterm_handler: Any = None
        self._before_stop: tuple[Any, Any, Any] = (None, None, None)

    @property
    def best_model_path(self) -> str:
        """The newest checkpoint: what ``trainer.test()`` loads after ``fit()``; waits for it."""
        reported = hpctrain.get_all_reported_checkpoints()
        return str(reported[-1].checkpoint.path / CHECKPOINT_NAME) if reported else ""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Look at what Lightning is about to change. Not collective."""
        self._sigterm_handler = signal.getsignal(signal.SIGTERM)
        asynchronous = import_pytorch("plugins.io").AsyncCheckpointIO
        if isinstance(trainer.strategy.checkpoint_io, asynchronous):
            raise ConfigError(
                "Trainer(plugins=[AsyncCheckpointIO()]) writes checkpoints after they are "
                "reported. Use ReportCallback(checkpoint_upload_mode=CheckpointUploadMode.ASYNC)."
            )

    def on_sanity_check_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take SIGTERM back. Not collective."""
        self._keep_sigterm()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take SIGTERM back, and go on with the streams of random numbers. Not collective."""
        self._keep_sigterm()
        self._is_stopping = False
        self._step = trainer.global_step
        if trainer.ckpt_path:
            saved = Path(trainer.ckpt_path).with_name(_rng_name())
            if saved.exists():
                rng.restore(torch.load(saved, weights_only=True), _cuda_devices())

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Report a step, where that is wanted. Collective."""
        hpctrain.heartbeat()
        step = trainer.global_step
        if step == self._step or trainer.is_last_batch:
            # Gradients are accumulated; or the epoch is about to be reported.
            return
        self._step = step
        save = _is_due(step, self._every_n_steps)
        if save or _is_due(step, self._report_every_n_steps):
            self._report(trainer, save=save, within_epoch=True)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note that the metrics of validation are known. Not collective."""
        self._has_validated |= not trainer.sanity_checking

    def on_validation_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """Say that this rank makes progress. Not collective."""
        hpctrain.heartbeat()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report the epoch. Collective."""
        if self._is_stopping:
            # Within the epoch, which goes on later.
            return
        self._step = trainer.global_step
        self._report(
            trainer,
            save=_is_due(trainer.current_epoch + 1, self._every_n_epochs)
            or _is_due(self._step, self._every_n_steps)
            or _is_last_epoch(trainer),
        )

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the Trainer as it was. Not collective."""
        if self._is_stopping:
            _set_limits(trainer, *self._before_stop)

    def _report(self, trainer: Trainer, *, save: bool, within_epoch: bool = False) -> None:
        metrics: dict[str, Any] = {
            name: value.item() for name, value in trainer.callback_metrics.items()
        }
        if within_epoch or (trainer.enable_validation and not self._has_validated):
            metrics = PartialMetrics(metrics)
        metrics.update(epoch=trainer.current_epoch, step=trainer.global_step)
        if save:
            self._report_checkpoint(trainer, metrics)
        else:
            hpctrain.report(metrics)
        if not hpctrain.should_stop():
            return
        if not save:
            self._report_checkpoint(trainer, metrics)
        if not self._is_stopping:
            self._is_stopping = True
            self._before_stop = trainer.limit_val_batches, trainer.min_epochs, trainer.min_steps
        trainer.should_stop = True
        # Lightning would validate first, and go on to its minimum; the job may be about to end.
        _set_limits(trainer, 0, None, None)

    def _report_checkpoint(self, trainer: Trainer, metrics: dict[str, Any]) -> None:
        with hpctrain.checkpoint_dir() as directory:
            path = Path(directory, CHECKPOINT_NAME)
            trainer.save_checkpoint(path, weights_only=self._save_weights_only)
            if path.is_dir():
                _check_shared(path)
            if trainer.is_global_zero:
                ModelFeatures(framework=FRAMEWORK).write(directory)
            if not self._save_weights_only:
                torch.save(rng.capture(_cuda_devices()), Path(directory, _rng_name()))
            hpctrain.report(
                metrics,
                Checkpoint.from_directory(directory),
                checkpoint_upload_mode=self._upload_mode,
                validation=self._validation,
            )

    def _keep_sigterm(self) -> None:
        # Lightning answers SIGTERM by a collective inside the handler. Here the executor is told,
        # and all ranks stop after the same report.
        if callable(self._sigterm_handler) and _is_main_thread():
            signal.signal(signal.SIGTERM, self._sigterm_handler)


def _set_limits(
    trainer: Trainer, val_batches: Any, min_epochs: int | None, min_steps: int | None
) -> None:
    trainer.limit_val_batches = val_batches
    trainer.fit_loop.min_epochs = min_epochs
    trainer.fit_loop.epoch_loop.min_steps = min_steps


def _is_due(count: int, every: int) -> bool:
    return every > 0 and count % every == 0


def _is_last_epoch(trainer: Trainer) -> bool:
    epochs, steps = trainer.max_epochs, trainer.max_steps
    return (
        trainer.should_stop
        or (epochs is not None and epochs != -1 and trainer.current_epoch + 1 >= epochs)
        or (steps != -1 and trainer.global_step >= steps)
    )


def _check_shared(path: Path) -> None:
    """Refuse a sharded checkpoint on a disk that the other nodes do not have."""
    context = hpctrain.get_context()
    if context.world.num_nodes > 1 and context.get_storage() not in path.parents:
        raise ConfigError(
            f"the strategy writes one directory from all nodes, and {path} is on the disk of one. "
            f"Leave SyncConfig(scratch_dir=...) out."
        )


def _rng_name() -> str:
    return f"rng-rank-{hpctrain.get_context().get_world_rank():05d}.pt"


def _cuda_devices() -> list[torch.device]:
    return [device for device in get_devices() if device.type == "cuda"]


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
