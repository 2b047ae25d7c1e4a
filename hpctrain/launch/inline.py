"""One rank in this interpreter: breakpoints work, nothing is started."""

from __future__ import annotations

import json
import socket
import tempfile
from pathlib import Path
from typing import Any

from hpctrain.control.wire import Frame
from hpctrain.errors import HpctrainError, WorkerError
from hpctrain.execute.departure import Departure
from hpctrain.execute.recorder import AttemptStart, Recorder
from hpctrain.execute.tracker import AttemptTracker
from hpctrain.frames import format_user_traceback
from hpctrain.launch.interrupt import explain_interrupt
from hpctrain.launch.only_attempt import begin_only_attempt
from hpctrain.launch.request import Submission
from hpctrain.rundir.status import RunState
from hpctrain.temporary_checkpoint import remove_dead_checkpoints
from hpctrain.uncaught import show_as
from hpctrain.worker.commits import Verdict
from hpctrain.worker.report import Session
from hpctrain.worker.train import pack_return_value, run_training
from hpctrain.world import SerialComm, World


class InlineChannel:
    """Reports that reach their recorder by a function call."""

    def __init__(self, recorder: Recorder, tracker: AttemptTracker, departure: Departure) -> None:
        self._recorder = recorder
        self._departure = departure
        self._tracker = tracker
        self.session: Session | None = None

    def report(self, line: bytes) -> None:
        """Record a report."""
        self._feed({"op": "report", "rank": 0}, line)

    def announce(self, line: bytes) -> None:
        """Take note of a report whose part of a checkpoint follows."""
        self._feed({"op": "report", "rank": 0, "part_follows": True}, line)

    def part(self, report: int, part: bytes) -> None:
        """Record the report whose part this is."""
        self._feed({"op": "part", "rank": 0, "report": report}, part)

    def ask(self, report: int) -> None:
        """Answer with all checkpoints."""
        self._feed({"op": "checkpoints", "rank": 0, "report": report}, b"")

    def turn(self, number: int, wanted: bool) -> None:
        """Let the only rank write."""
        if wanted and self.session is not None:
            self.session.writing.begin(number)

    def progress(self, op: str, **details: str | int) -> None:
        """Do nothing: who would watch this process from inside it."""

    def _feed(self, header: dict[str, Any], body: bytes) -> None:
        for round_ in self._tracker.feed(Frame(header, body, b"")):
            self._recorder.record(round_, self._broadcast)
        self._recorder.answer(self._tracker, self._broadcast)
        self._recorder.tick(phase="training", reports=self._tracker.reports)
        self._departure.step()
        if self._recorder.stop is not None and self.session is not None:
            self.session.stop_after(self._tracker.reports)

    def _broadcast(self, op: str, body: bytes = b"", **details: Any) -> None:
        assert self.session is not None
        if op == "checkpoints":
            self.session.hear_checkpoints(details["report"], json.loads(body))
        if op == "committed":
            self.session.decide(details["report"], Verdict(details["path"], details["error"]))


def run_inline(submission: Submission) -> None:
    """Run a request in this interpreter, on one rank.

    Not collective. An exception of the training function is raised as it is, so that a debugger
    stops where it happened; the run is marked failed.
    """
    remove_dead_checkpoints(tempfile.gettempdir())
    recorder, departure, start = begin_only_attempt(submission)
    with recorder.journal.kept_alive():
        _run_attempt(submission, recorder, departure, start)


def _run_attempt(
    submission: Submission, recorder: Recorder, departure: Departure, start: AttemptStart
) -> None:
    request, journal = submission.request, recorder.journal
    world = World(
        attempt=start.attempt,
        world_rank=0,
        world_size=1,
        local_rank=0,
        local_world_size=1,
        node_rank=0,
        num_nodes=1,
        hostname=socket.gethostname(),
    )
    journal.change(state=RunState.RUNNING, world_size=1, nodes=(world.hostname,), phase="training")
    tracker = AttemptTracker(world_size=1, first_report=start.first_report)
    channel = InlineChannel(recorder, tracker, departure)
    session = channel.session = Session(
        world=world,
        paths=request.paths,
        channel=channel,
        first_report=start.first_report,
        checkpoint=start.checkpoint,
        commit_timeout_s=request.run_config.sync_config.sync_timeout,
        in_background=False,
    )
    error: BaseException | None = None
    try:
        value = run_training(
            submission.spec,
            paths=request.paths,
            session=session,
            comm=SerialComm(),
            on_phase=lambda _: None,
        )
        recorder.keep_return_value(pack_return_value(world, value))
        journal.change(reports=tracker.reports, phase="done")
        recorder.raise_if_unfinished(tracker.reports, told=session.was_told)
        recorder.finish_validations(departure.step)
    except BaseException as raised:
        error = raised
        raise
    finally:
        recorder.end_attempt(error=error, reports=tracker.reports)
        failure = as_failure(error, world, checkpoint=recorder.checkpoint_path())
        recorder.end(failure)
        if isinstance(error, KeyboardInterrupt):
            explain_interrupt(error, request.run_config, recorder.checkpoint_path())
        elif error is not None and failure is not error:
            show_as(error, f"hpctrain: {failure}")


def as_failure(
    error: BaseException | None, world: World, *, checkpoint: Path | None = None
) -> BaseException | None:
    """Return what is written down of an exception of the training function. Not collective."""
    if error is None or isinstance(error, (HpctrainError, KeyboardInterrupt)):
        return error
    return WorkerError(
        f"rank 0 of 1 on {world.hostname} failed: {type(error).__name__}: {error}\n"
        f"  Last complete checkpoint: {checkpoint or 'none'}\n\n"
        f"{format_user_traceback(error, HpctrainError)}",
        rank=0,
        hostname=world.hostname,
        worker_failures={0: error},
    )
