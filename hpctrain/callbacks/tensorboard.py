"""`TBXLoggerCallback`: event files for TensorBoard."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from hpctrain.callback import RunContext
from hpctrain.callbacks.logger import LoggerCallback, encodable, missing_reports, numbers
from hpctrain.callbacks.position import Position
from hpctrain.metric_names import as_finite, flatten, is_number

if TYPE_CHECKING:
    from hpctrain.checkpoint import Checkpoint


class TBXLoggerCallback(LoggerCallback):
    """Writes event files into the run directory, by tensorboardX: ``tensorboard --logdir STORAGE``.

    The step is the number of the report. Hyperparameters go to the page HPARAMS. In TensorBoard
    repeated reports replace earlier ones.
    """

    package = "tensorboardX"
    extra = "tensorboard"

    _writer: Any = None
    _end: Any = None
    _position: Position | None = None

    def describe_record(self) -> str:
        """Return what it writes; see `hpctrain.UserCallback`."""
        return "the event files of TensorBoard"

    def open(self, run_context: RunContext) -> None:
        """Begin a file of the attempt, which hides reports of earlier ones that it makes again.

        It begins with the reports that were not logged, as their executor was killed.
        """
        from tensorboardX import SummaryWriter
        from tensorboardX.summary import hparams

        # It warns of each value that is not a number, without naming it.
        logging.getLogger("tensorboardX.x2num").setLevel(logging.ERROR)
        if self._writer is not None:
            self._writer.close()
        position = self._position = Position(run_context, "tensorboard")
        if position.record is None:
            position.begin(position.run_id)
        missing = missing_reports(run_context, range(1, position.report + 1))
        first = min([run_context.report, *(line["report"] for line in missing)])
        # Names are in the order of attempts, and none is used twice within a second.
        self._writer = SummaryWriter(
            str(run_context.path),
            purge_step=max(first, 1) if run_context.attempt > 1 else None,
            filename_suffix=f".{run_context.attempt:05d}",
        )
        shown = flatten(self.parameters)
        if known := {encodable(name): _as_shown(value) for name, value in shown.items()}:
            experiment, start, self._end = hparams(known, {})
            self._writer._get_file_writer().add_summary(experiment)
            self._writer._get_file_writer().add_summary(start)
        for line in missing:
            self._write(line["report"], line["time"], flatten(line["metrics"]))

    def log(
        self, run_context: RunContext, metrics: dict[str, Any], checkpoint: Checkpoint | None
    ) -> None:
        """Write a scalar for each number."""
        self._write(run_context.report, time.time(), metrics)

    def _write(self, report: int, time_s: float, metrics: dict[str, Any]) -> None:
        assert self._position is not None
        found = numbers(metrics)
        self.say_left_out(metrics.keys() - found.keys(), "TensorBoard shows numbers")
        for name, value in found.items():
            self._writer.add_scalar(name, value, report, walltime=time_s)
        self._writer.flush()
        self._position.move(report)

    def close(self, run_context: RunContext, state: str) -> None:
        """Close the file."""
        if self._end is not None and state == "finished":
            self._writer._get_file_writer().add_summary(self._end)
        self._writer.close()
        self._writer = self._end = None


def _as_shown(value: Any) -> bool | float | str:
    if isinstance(value, int) and is_number(value):
        # tensorboardX takes no integer of more than 64 bits, such as the entropy of a seed.
        number = as_finite(value)
        return repr(value) if number is None else number
    return (
        value
        if isinstance(value, (bool, float))
        else encodable(value if isinstance(value, str) else repr(value))
    )
