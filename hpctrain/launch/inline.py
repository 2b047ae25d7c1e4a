"""One rank in this interpreter: breakpoints work, nothing is started."""

from __future__ import annotations

import socket
import time
from typing import Any

from hpctrain.control.wire import Frame
from hpctrain.errors import ConfigError
from hpctrain.execute.executor import initial_status
from hpctrain.execute.recorder import Recorder
from hpctrain.execute.tracker import AttemptTracker
from hpctrain.launch.request import Submission
from hpctrain.plan import spec
from hpctrain.rundir.ledger import append_event, count_attempts
from hpctrain.rundir.status import RunState
from hpctrain.worker.report import Session, Verdict
from hpctrain.worker.train import run_training
from hpctrain.world import SerialComm, World


class InlineChannel:
    """Reports that reach their recorder by a function call."""

    def __init__(self, recorder: Recorder, tracker: AttemptTracker) -> None:
        self._recorder = recorder
        self._tracker = tracker
        self.session: Session | None = None

    def report(self, line: bytes) -> None:
        """Record a report."""
        self._feed({"op": "report", "rank": 0}, line)

    def stage(self, report: int, line: bytes, parts: bytes) -> None:
        """Record a report with a staged checkpoint."""
        header = {"op": "stage", "rank": 0, "report": report, "line_bytes": len(line)}
        self._feed(header, line + parts)

    def _feed(self, header: dict[str, Any], body: bytes) -> None:
        for round_ in self._tracker.feed(Frame(header, body, b"")):
            self._recorder.record(round_, self._broadcast)
        self._recorder.tick(phase="training", reports=self._tracker.reports)
        if self._recorder.wants_stop is not None and self.session is not None:
            self.session.stop_after(self._tracker.reports)

    def _broadcast(self, op: str, **details: Any) -> None:
        assert self.session is not None
        if op == "committed":
            self.session.decide(details["report"], Verdict(details["path"], details["error"]))


def run_inline(submission: Submission) -> None:
    """Run a request in this interpreter, on one rank.

    Not collective. An exception of the training function is raised as it is, so that a debugger
    stops where it happened; the run is marked failed.
    """
    request = submission.request
    paths = request.paths
    recorder = Recorder(
        paths=paths,
        run_config=request.run_config,
        status=initial_status(paths, submission.plan, request.run_config),
    )
    attempt = count_attempts(paths) + 1
    hostname = socket.gethostname()
    recorder.store.remove_unfinished()
    manifest, _ = recorder.store.newest_good()
    recorder.latest = None if manifest is None else recorder.store.open(manifest)
    append_event(paths, "attempt-started", attempt=attempt, job_id=None, host=hostname)
    recorder.change(
        state=RunState.RUNNING, attempt=attempt, world_size=1, nodes=(hostname,), phase="training"
    )
    tracker = AttemptTracker(world_size=1, first_report=manifest.report if manifest else 0)
    channel = InlineChannel(recorder, tracker)
    world = World(
        attempt=attempt,
        world_rank=0,
        world_size=1,
        local_rank=0,
        local_world_size=1,
        node_rank=0,
        num_nodes=1,
        hostname=hostname,
    )
    from hpctrain.checkpoint import Checkpoint

    resumed = recorder.latest or (
        Checkpoint(request.resume_from) if request.resume_from is not None else None
    )
    session = channel.session = Session(
        world=world,
        paths=paths,
        channel=channel,
        first_report=tracker.reports,
        checkpoint=resumed,
        commit_timeout_s=request.run_config.sync_config.sync_timeout,
    )
    error: str | None = None
    try:
        value = run_training(
            submission.spec,
            paths=paths,
            session=session,
            comm=SerialComm(),
            on_phase=lambda _: None,
        )
        if value is not None:
            recorder.keep_return_value(_pack_or_drop(value))
    except BaseException as raised:
        error = f"rank 0 of 1 on {hostname} failed: {type(raised).__name__}: {raised}"
        raise
    finally:
        append_event(
            paths,
            "attempt-ended",
            attempt=attempt,
            cause=error or "finished",
            reports=tracker.reports,
            nodes=[hostname],
        )
        recorder.change(
            state=RunState.FAILED if error else RunState.FINISHED,
            error=error,
            ended_at=time.time(),
            reports=tracker.reports,
            metrics=recorder.progress(),
        )
        from hpctrain.result import Result

        recorder.call("on_finish", Result.from_path(paths.root))


def _pack_or_drop(value: Any) -> bytes:
    try:
        return spec.pack(value, what="the return value")
    except ConfigError as error:
        print(f"hpctrain: {error} It is dropped.")
        return b""
