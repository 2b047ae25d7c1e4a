"""`TBXLoggerCallback`: event files for TensorBoard."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from hpctrain.callback import RunContext
from hpctrain.callbacks.logger import LoggerCallback, flatten, numbers

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

    def open(self, run_context: RunContext) -> None:
        """Begin a file of the attempt, which hides reports of earlier ones that it makes again."""
        from tensorboardX import SummaryWriter
        from tensorboardX.summary import hparams

        # It warns of each value that is not a number, without naming it.
        logging.getLogger("tensorboardX.x2num").setLevel(logging.ERROR)
        if self._writer is not None:
            self._writer.close()
        # Names are in the order of attempts, and none is used twice within a second.
        self._writer = SummaryWriter(
            str(run_context.path),
            purge_step=max(run_context.report, 1) if run_context.attempt > 1 else None,
            filename_suffix=f".{run_context.attempt:05d}",
        )
        shown = flatten(self.parameters)
        known = {
            name: value if isinstance(value, (bool, int, float, str)) else repr(value)
            for name, value in shown.items()
        }
        if known:
            experiment, start, self._end = hparams(known, {})
            self._writer._get_file_writer().add_summary(experiment)
            self._writer._get_file_writer().add_summary(start)

    def log(
        self, run_context: RunContext, metrics: dict[str, Any], checkpoint: Checkpoint | None
    ) -> None:
        """Write a scalar for each number."""
        found = numbers(metrics)
        self.say_left_out(metrics.keys() - found.keys(), "TensorBoard shows numbers")
        for name, value in found.items():
            self._writer.add_scalar(name, value, run_context.report)
        self._writer.flush()

    def close(self, run_context: RunContext, state: str) -> None:
        """Close the file."""
        if self._end is not None and state == "finished":
            self._writer._get_file_writer().add_summary(self._end)
        self._writer.close()
        self._writer = self._end = None
