"""`TrackerCallback`: loggers whose records can only be appended to."""

from __future__ import annotations

import abc
import time
from typing import TYPE_CHECKING, Any, ClassVar

from hpctrain.callback import RunContext
from hpctrain.callbacks.logger import LoggerCallback
from hpctrain.callbacks.position import Position
from hpctrain.metric_names import flatten
from hpctrain.rundir.metrics import read_reports
from hpctrain.rundir.paths import RunPaths

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpctrain.checkpoint import Checkpoint
    from hpctrain.result import Result


class TrackerCallback(LoggerCallback):
    """Sends each report once, in order.

    What an attempt reports again is not sent again: the record keeps what came first, while
    ``metrics.jsonl`` keeps what came last. Reports that did not get into the record, because its
    executor died or a server did not answer, are sent from ``metrics.jsonl`` later.
    """

    tracker: ClassVar[str]
    """Its name in the run directory."""
    is_kept_at_once: bool = True
    """Whether a report that was sent outlives this process; else only `end` makes it so."""

    _position: Position | None = None

    @abc.abstractmethod
    def begin(self, run_context: RunContext, position: Position) -> None:
        """Create the record, or open the one that the run continues.

        Called once in a process, and again if it raises. It must call `Position.begin` if the
        record is new and kept at once.
        """

    @abc.abstractmethod
    def send(
        self, report: int, time_s: float, metrics: dict[str, Any], checkpoint: Checkpoint | None
    ) -> None:
        """Append a report, made `time_s` seconds after the epoch."""

    @abc.abstractmethod
    def end(self, run_context: RunContext, state: str) -> None:
        """End the record; see `close`."""

    def store(self, run_context: RunContext) -> str:
        """Return where the record is, if a run can have one in several places."""
        return ""

    def on_submit(self, parameters: Mapping[str, Any]) -> None:
        """Refuse to start without the library; see `hpctrain.UserCallback`."""
        super().on_submit(parameters)
        self._position = None

    def on_finish(self, run_context: RunContext, result: Result) -> None:
        """End the record, also of a run without a report; see `hpctrain.UserCallback`."""
        self._open(run_context)
        self._catch_up(run_context, run_context.report + 1)
        super().on_finish(run_context, result)

    def open(self, run_context: RunContext) -> None:
        """Open the record, and send its missing reports."""
        if self._position is None:
            position = Position(run_context, self.tracker, store=self.store(run_context))
            self.begin(run_context, position)
            self._position = position
        self._catch_up(run_context, run_context.report)

    def log(
        self, run_context: RunContext, metrics: dict[str, Any], checkpoint: Checkpoint | None
    ) -> None:
        """Send a report."""
        self._send(run_context.report, time.time(), metrics, checkpoint)

    def close(self, run_context: RunContext, state: str) -> None:
        """End the record; the run may continue it."""
        position, self._position = self._position, None
        self.end(run_context, state)
        if position is not None and not self.is_kept_at_once:
            position.begin(position.record or position.run_id)

    def _catch_up(self, run_context: RunContext, end: int) -> None:
        """Send the reports before `end` that the record lacks."""
        if self._position is None or self._position.report + 1 >= end:
            return
        for line in read_reports(RunPaths(run_context.path)):
            if self._position.report < line["report"] < end:
                self._send(line["report"], line["time"], flatten(line["metrics"]), None)

    def _send(
        self, report: int, time_s: float, metrics: dict[str, Any], checkpoint: Checkpoint | None
    ) -> None:
        assert self._position is not None
        if report <= self._position.report:
            return
        try:
            self.send(report, time_s, metrics, checkpoint)
        except Exception:
            # The next report opens it again, and sends this one too.
            self._attempt = 0
            raise
        if self.is_kept_at_once:
            self._position.move(report)
        else:
            self._position.report = report
