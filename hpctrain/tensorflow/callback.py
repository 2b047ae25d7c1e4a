"""`ReportCheckpointCallback`: reports and saves from ``model.fit()``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

import hpctrain
from hpctrain.data.optional import require
from hpctrain.errors import ConfigError
from hpctrain.metric_names import PartialMetrics
from hpctrain.tensorflow.checkpoint import TensorflowCheckpoint
from hpctrain.worker.context import active_worker

if TYPE_CHECKING:
    from hpctrain.validation_config import ValidationTaskConfig


def _keras_callback() -> type[Any]:
    try:
        # Keras 3 calls callbacks of Keras 2 as well as its own, and not the other way round.
        import tf_keras as keras
    except ImportError:
        keras = require("keras", to="for ReportCheckpointCallback", extra="tensorflow")
    found: type[Any] = keras.callbacks.Callback
    return found


_EVENTS = tuple(
    f"{part}_{end}"
    for part in ("train", "epoch", "test", "predict", "train_batch", "test_batch", "predict_batch")
    for end in ("begin", "end")
)
# What Keras puts before the names of metrics of a validation.
_VALIDATION = "val_"


class ReportCheckpointCallback(_keras_callback()):  # type: ignore[misc]  # known at run time
    """Reports metrics, with the model as a checkpoint, for ``model.fit(callbacks=[...])``.

    Every rank gives one to its ``fit()``. All of them save, since saving may be collective, and
    rank 0's model is kept. Training ends after the report at which `hpctrain.should_stop` is true.

    A checkpoint also says how many epochs were complete. With
    ``fit(initial_epoch=callback.initial_epoch)`` a run that resumes goes on with the next one, and
    the datasets of `hpctrain.get_dataset_shard` with its rows.

    Parameters
    ----------
    checkpoint_on
        When the model is saved: ``epoch_end``, ``train_batch_end``, ``train_end`` or another
        method of a Keras callback without its ``on_``, or a list of them.
    report_metrics_on
        When metrics are reported without a checkpoint; those of `checkpoint_on` need not be here.
    metrics
        What is reported: None is all that Keras gives, a list of names, or a mapping of new names
        to them.
    validation
        Whether, and how, checkpoints are validated beside the training, as in `hpctrain.report`.

    Raises
    ------
    ConfigError
        If there is no such event.
    """

    def __init__(
        self,
        checkpoint_on: str | Sequence[str] = "epoch_end",
        report_metrics_on: str | Sequence[str] = "epoch_end",
        metrics: str | Sequence[str] | Mapping[str, str] | None = None,
        *,
        validation: bool | ValidationTaskConfig = False,
    ) -> None:
        super().__init__()
        self._validation = validation
        self._checkpoint_on = _events(checkpoint_on, "checkpoint_on")
        self._metrics = metrics
        checkpoint = hpctrain.get_checkpoint()
        state = {} if checkpoint is None else checkpoint.get_metadata()
        self.initial_epoch: int = state.get("epoch", 0)
        """Epochs that were complete in the newest checkpoint when this was made: make it before
        anything is reported, while all ranks know of the same one."""
        self._epoch = self.initial_epoch
        self._has_validated = False
        self._is_cut_short = False
        """Whether this epoch ends before its last batch, for a stop."""
        for event in self._checkpoint_on | _events(report_metrics_on, "report_metrics_on"):
            # On the instance: Keras asks a class that has on_train_batch_end() to wait for the
            # metrics of each batch, whether it does something with them or not.
            setattr(self, f"on_{event}", partial(self._on, event, getattr(self, f"on_{event}")))

    def on_train_begin(self, logs: Any = None) -> None:
        """Let the datasets go on with the epoch after those. Not collective."""
        if not self.initial_epoch:
            return
        for shard in active_worker("ReportCheckpointCallback").iterators.values():
            at_its_begin = {"epoch": self.initial_epoch, "taken": [], "mixing": None}
            shard.load_state_dict({**shard.state_dict(), **at_its_begin})

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Keep the number of complete epochs. Not collective."""
        self._epoch = epoch
        self._is_cut_short = False

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Keep the number of complete epochs. Not collective."""
        # The run that resumes begins an epoch that was cut short anew.
        self._epoch = epoch if self._is_cut_short else epoch + 1

    def on_test_end(self, logs: Any = None) -> None:
        """Note that there is a validation. Not collective."""
        self._has_validated = True

    def _on(self, event: str, hook: Any, *arguments: Any, **keywords: Any) -> None:
        """Do what `hook` does, and report. Collective if the model is saved."""
        hook(*arguments, **keywords)
        given = (*arguments, *keywords.values())
        # A loop of the user's own may leave them out.
        logs = next((x for x in given if isinstance(x, Mapping)), {})
        # With fit(validation_freq=n), which callbacks cannot see, the nth epoch is the first with a
        # validation.
        may_lack = event == "epoch_end" and not any(n.startswith(_VALIDATION) for n in logs)
        metrics = self._selected(logs, may_lack_validation=may_lack)
        if event != "epoch_end":
            metrics = PartialMetrics(metrics)
        elif may_lack and not self._has_validated:
            metrics = PartialMetrics(metrics, lacks=_VALIDATION if self._metrics is None else "")
        if event in self._checkpoint_on:
            self._save(metrics)
        else:
            hpctrain.report(metrics)
        if hpctrain.should_stop():
            self.model.stop_training = True
            if event == "train_batch_end" and given[0] + 1 != (self.params or {}).get("steps"):
                self._is_cut_short = True

    def _save(self, metrics: Mapping[str, Any]) -> None:
        worker = active_worker("ReportCheckpointCallback")
        if worker.context.get_world_rank() != 0:
            # Into a directory that is gone at once: what counts is to take part.
            TensorflowCheckpoint.from_model(self.model)
            hpctrain.report(metrics)
            return
        with hpctrain.checkpoint_dir() as directory:
            checkpoint = TensorflowCheckpoint.from_model(self.model, path=directory)
            checkpoint.set_metadata({"epoch": self._epoch})
            hpctrain.report(metrics, checkpoint, validation=self._validation)

    def _selected(self, logs: Mapping[str, Any], *, may_lack_validation: bool) -> dict[str, Any]:
        wanted = self._metrics
        if wanted is None:
            names = {name: name for name in logs}
        elif isinstance(wanted, Mapping):
            names = dict(wanted)
        else:
            names = {name: name for name in ([wanted] if isinstance(wanted, str) else wanted)}
        if may_lack_validation:
            names = {new: n for new, n in names.items() if not n.startswith(_VALIDATION)}
        if missing := [name for name in names.values() if name not in logs]:
            raise ConfigError(
                f"ReportCheckpointCallback(metrics=...) names {', '.join(map(repr, missing))}, and "
                f"Keras gives {', '.join(map(repr, logs)) or 'nothing'} here."
            )
        return {new: _as_metric(logs[name]) for new, name in names.items()}


def _as_metric(value: Any) -> Any:
    """Return a value of Keras' logs as a number, or a list of them if it has several."""
    array = np.asarray(value)
    return float(array.item()) if array.size == 1 else array.tolist()


def _events(given: str | Sequence[str], name: str) -> set[str]:
    events = {given} if isinstance(given, str) else set(given)
    if unknown := sorted(events - set(_EVENTS)):
        raise ConfigError(
            f"{name} has {', '.join(map(repr, unknown))}. Keras has {', '.join(_EVENTS)}."
        )
    return events
