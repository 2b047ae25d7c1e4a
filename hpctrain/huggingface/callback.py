"""`ReportCallback`: what a `transformers.Trainer` logs and saves becomes reports."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

import hpctrain
from hpctrain.checkpoint import Checkpoint, CheckpointUploadMode
from hpctrain.collective import barrier
from hpctrain.huggingface.checkpoint import describe
from hpctrain.metric_names import PartialMetrics

if TYPE_CHECKING:
    from hpctrain.validation_config import ValidationTaskConfig


class ReportCallback(TrainerCallback):  # type: ignore[misc]  # no types are looked at
    """Reports what a `transformers.Trainer` logs, and the checkpoints that it saves.

    Every rank gives one to its trainer. There is a report after each step that logged, evaluated or
    saved (``logging_steps``, ``eval_strategy``, ``save_strategy``), with the newest value of
    everything that was logged, ``step`` and ``epoch``.

    A stop is noticed at a report, as by `hpctrain.should_stop`; the trainer then saves and ends. So
    ``logging_steps`` is also the number of steps that a stop may have to wait for.

    Parameters
    ----------
    checkpoint_upload_mode
        As in `hpctrain.report`.
    validation
        Whether, and how, checkpoints are validated beside the training, as in `hpctrain.report`.
    """

    CHECKPOINT_NAME = "."
    """Where in a checkpoint the files are. In Ray Train's it is a folder."""

    def __init__(
        self,
        checkpoint_upload_mode: CheckpointUploadMode = CheckpointUploadMode.SYNC,
        *,
        validation: bool | ValidationTaskConfig = False,
    ) -> None:
        self._mode = checkpoint_upload_mode
        self._validation = validation
        self._metrics: dict[str, Any] = {}
        self._has_logged = self._has_evaluated = False
        self._is_due = False
        self._stopped = False
        self.saved: Path | None = None
        """This rank's part of what was saved last, where it is not in ``output_dir``."""

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Take up what was logged before the run was interrupted. Collective."""
        self._metrics = {}
        self._is_due = self._stopped = False
        for logged in state.log_history:
            self._metrics.update(logged)
        if state.best_global_step and state.best_model_checkpoint is None:
            # It names where it lay while it was saved, and was moved when it was committed.
            state.best_model_checkpoint = _find_checkpoint(state.best_global_step)

    def on_step_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Report the step before, if it logged. Not collective."""
        self._report_what_is_due(args)

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Save and stop if that is wanted. Not collective."""
        hpctrain.heartbeat()
        if hpctrain.should_stop():
            control.should_training_stop = control.should_save = self._stopped = True

    def on_epoch_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Leave an epoch that was stopped without what belongs to its end. Not collective."""
        if self._stopped:
            control.should_log = control.should_evaluate = control.should_save = False

    def on_prediction_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Say that the rank goes on. Not collective."""
        hpctrain.heartbeat()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Keep what was logged for the next report. Not collective."""
        self._metrics.update(logs or {}, step=state.global_step)
        self._is_due = self._has_logged = True

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Note that the metrics of an evaluation are known. Not collective."""
        self._has_evaluated = True

    def on_save(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Report the checkpoint. Collective."""
        self._metrics.update(step=state.global_step, epoch=state.epoch)
        self._is_due = False
        part = self._part(args, state)
        if part is not None and args.process_index == 0:
            describe(part)
        hpctrain.report(
            self._known(args),
            None if part is None else Checkpoint.from_directory(part),
            checkpoint_upload_mode=self._mode,
            validation=self._validation if part is not None else False,
        )
        if state.best_global_step == state.global_step:
            state.best_model_checkpoint = _find_checkpoint(state.global_step)
        if hpctrain.should_stop():
            control.should_training_stop = self._stopped = True

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        **kwargs: Any,
    ) -> None:
        """Report what was logged last. Not collective."""
        if not self._stopped:
            self._report_what_is_due(args)

    def _report_what_is_due(self, args: TrainingArguments) -> None:
        if self._is_due:
            self._is_due = False
            hpctrain.report(self._known(args))

    def _known(self, args: TrainingArguments) -> dict[str, Any]:
        """Return the metrics, marked as partial while some were not measured yet."""
        evaluates = getattr(args, "eval_strategy", "no") != "no"
        is_partial = not self._has_logged or (evaluates and not self._has_evaluated)
        return PartialMetrics(self._metrics) if is_partial else self._metrics

    def _part(self, args: TrainingArguments, state: TrainerState) -> Path | None:
        """Return this rank's part of what was just saved. Collective."""
        part, self.saved = self.saved, None
        if part is None:
            part = Path(args.output_dir, f"checkpoint-{state.global_step}")
            # All ranks have written into the same directory, of which rank 0 takes all.
            barrier()
            return part if args.process_index == 0 else None
        return part if any(part.iterdir()) else None


def _find_checkpoint(step: int) -> str | None:
    """Return the committed checkpoint of a step. Collective."""
    for reported in reversed(hpctrain.get_all_reported_checkpoints()):
        if reported.metrics.get("step") == step:
            return str(reported.checkpoint.path)
    return None
