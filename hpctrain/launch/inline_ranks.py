"""`InlineRanks`: one rank that runs where its executor does, reached by function calls."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hpctrain.control.wire import Frame
from hpctrain.execute.attempt_executor import AttemptExecutor
from hpctrain.execute.attempt_loop import AttemptLoop
from hpctrain.execute.recorder import Recorder
from hpctrain.execute.rendezvous import WorkerMetadata
from hpctrain.worker.commits import CommitOutcome
from hpctrain.worker.report import Session


class InlineRanks:
    """The only rank, which runs where its executor does: what it is sent is a function call."""

    lost_nodes: Mapping[str, bool] = {}
    share_a_terminal = True
    workers: Sequence[WorkerMetadata] = ()
    """None that could be watched: this process cannot watch itself."""

    def __init__(self) -> None:
        self.session: Session | None = None

    def __len__(self) -> int:
        """Return 1."""
        return 1

    def node_use(self) -> Mapping[str, Mapping[str, Any]]:
        """Return nothing: there are no agents here."""
        return {}

    def broadcast(self, op: str, body: bytes = b"", **details: Any) -> None:
        """Call the method for the command."""
        assert self.session is not None
        if op == "checkpoints":
            self.session.receive_checkpoints(details["report"], json.loads(body))
        elif op == "committed":
            self.session.decide(details["report"], CommitOutcome(details["path"], details["error"]))
        elif op == "slot":
            self.session.writing.begin(details["number"])

    def poll(self, timeout_s: float) -> list[Frame]:
        """Return nothing: what it sends comes by itself, through `InlineChannel`."""
        return []

    def examine(self, pids: Mapping[int, int], silent: Sequence[int]) -> None:
        """Do nothing."""

    def exit_status(self) -> None:
        """Return None: nothing was started."""

    def launcher_output(self) -> None:
        """Return None: nothing was started."""

    def await_death_notice(self, silent: Sequence[int]) -> None:
        """Return at once."""


class InlineChannel:
    """Reports that reach the loop by a function call."""

    def __init__(self, attempt: AttemptExecutor, loop: AttemptLoop) -> None:
        self._attempt = attempt
        self._loop = loop

    def report(self, line: bytes) -> None:
        """Record a report."""
        self._send("report", line)

    def announce(self, line: bytes) -> None:
        """Record a report whose part of a checkpoint follows."""
        self._send("report", line, part_follows=True)

    def part(self, report: int, part: bytes) -> None:
        """Record the report whose part this is."""
        self._send("part", part, report=report)

    def ask(self, report: int) -> None:
        """Answer with all checkpoints."""
        self._send("checkpoints", report=report)

    def slot(self, number: int, wanted: bool) -> None:
        """Let the only rank write."""
        self._send("slot", number=number, wanted=wanted)

    def progress(self, op: str, **details: str | int) -> None:
        """Do nothing: this process cannot watch itself."""

    def enter(self, phase: str) -> None:
        """Record how far the rank is."""
        self._attempt.take([Frame({"op": "phase", "rank": 0, "phase": phase}, b"", b"")])

    def done(self, value: bytes, *, notified: bool) -> None:
        """Record that the training function has returned."""
        self._attempt.take([Frame({"op": "done", "rank": 0, "notified": notified}, value, b"")])

    def _send(self, op: str, body: bytes = b"", **details: Any) -> None:
        self._attempt.take([Frame({"op": op, "rank": 0, **details}, body, b"")])
        self._loop.turn(self._attempt.poll(0.0))


class StopAtOnce:
    """Lets the only rank stop after the report that it has just made."""

    def __init__(self, recorder: Recorder, attempt: AttemptExecutor, ranks: InlineRanks) -> None:
        self._recorder = recorder
        self._attempt = attempt
        self._ranks = ranks

    def step(self) -> None:
        """Send it the stop, if it is to stop."""
        if self._recorder.stop is not None and self._ranks.session is not None:
            self._ranks.session.stop_after(self._attempt.tracker.reports)
