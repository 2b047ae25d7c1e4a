"""Every process already is a rank: attach to the MPI world that exists.

Rank 0 does the executor's part in a thread. Nothing is started, and nothing is restarted: that is
the business of whoever started the ranks.
"""

from __future__ import annotations

import atexit
import json
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hpctrain import environ
from hpctrain.config import ScalingConfig
from hpctrain.control.hub import SECRET_BYTES, Hub
from hpctrain.control.link import Link, connect_tcp
from hpctrain.control.wire import Frame
from hpctrain.errors import ConfigError, HpctrainError, TrainingFailedError
from hpctrain.execute.examine import Examiner
from hpctrain.execute.executor import initial_status
from hpctrain.execute.explain import explain_failure
from hpctrain.execute.hang import HangWatch
from hpctrain.execute.progress import Progress
from hpctrain.execute.recorder import AttemptStart, Recorder
from hpctrain.execute.roll_call import WorkerMetadata
from hpctrain.execute.stop import StopAgreement
from hpctrain.execute.tracker import AttemptTracker
from hpctrain.launch.claim import claimed
from hpctrain.launch.existing import Existing, decide_on_existing, job_is_alive
from hpctrain.launch.follow import Follower
from hpctrain.launch.record import write_plan_and_spec
from hpctrain.launch.request import Request, Submission, make_plan, make_spec
from hpctrain.plan import spec
from hpctrain.result import Result
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.status import RunState
from hpctrain.worker import mpi
from hpctrain.worker.bootstrap import hello_details, join_world
from hpctrain.worker.failure import describe_exception
from hpctrain.worker.link_channel import LinkChannel, connect_session
from hpctrain.worker.report import Session
from hpctrain.worker.stacks import answer_with_stacks
from hpctrain.worker.train import (
    export_thread_counts,
    pack_return_value,
    run_training,
    settle,
)
from hpctrain.world import World

if TYPE_CHECKING:
    from mpi4py.MPI import Comm

_CONNECT_TIMEOUT_S = 60.0
_POLL_S = 0.25
# How long a rank whose peer has failed may take to notice it by itself, and to raise.
_GRACE_S = 5.0

_joined: tuple[World, Comm] | None = None
_failed = False


@dataclass(frozen=True, kw_only=True)
class _Opening:
    """What rank 0 tells the others before they begin."""

    paths: RunPaths
    start: AttemptStart | None
    """None: there is nothing to run, `result` says why."""
    content: bytes
    """The run's `RunSpec`."""
    addresses: list[str]
    secret: bytes
    result: Result | None = None


def fit_spmd(request: Request) -> Result:
    """Run a request on the ranks that exist. Collective.

    Raises
    ------
    ConfigError, LaunchError
        If something is impossible; the same on every rank.
    TrainingFailedError
        If a rank failed, on every rank that can still raise. Those that hang in a collective are
        ended after some seconds.
    """
    world, comm = _join(request.scaling_config)
    coordinator: _Coordinator | None = None
    opening: Any = None
    if world.world_rank == 0:
        try:
            opening, coordinator = _open(request.named(), world)
        except (HpctrainError, SystemExit) as error:
            opening = error
    opening = comm.bcast(opening)
    if isinstance(opening, BaseException):
        raise opening
    if opening.result is not None:
        return Result(
            path=opening.result.path, status=opening.result.status, error=opening.result.error
        )
    if coordinator is not None:
        coordinator.start()
    try:
        return _run_rank(opening, replace(world, attempt=opening.start.attempt), comm)
    except BaseException:
        global _failed
        _failed = True
        raise
    finally:
        if coordinator is not None:
            coordinator.join()


def _join(scaling: ScalingConfig) -> tuple[World, Comm]:
    """Join the world once; a second ``fit()`` uses the same."""
    fewest, most = scaling.min_workers, scaling.max_workers
    global _joined
    if _joined is None:
        _joined = join_world(attempt=0, fewest=fewest, most=most)
        atexit.register(_leave)
    world, _ = _joined
    if not fewest <= world.world_size <= most:
        raise ConfigError(
            f"num_workers={scaling.num_workers}, but this process is one of {world.world_size} "
            f"ranks. Start as many ranks as workers, or set num_workers={world.world_size}."
        )
    return _joined


def _leave() -> None:
    """Leave MPI at the end of the script: together after success, at once after a failure."""
    if _failed:
        sys.stdout.flush()
        sys.stderr.flush()
        assert _joined is not None
        # The abort ends all of them, also one that is still printing why it failed.
        mpi.wait_barrier(_joined[1], timeout_s=_GRACE_S)
        # MPI_Finalize would wait for ranks that will not come.
        mpi.abort(1)
    mpi.finalize()


def _open(request: Request, world: World) -> tuple[_Opening, _Coordinator | None]:
    """Do what the user's process does in the other homes. Rank 0 only."""
    plan, site = make_plan(request, "spmd")
    submission = Submission(request=request, plan=plan, site=site, spec=make_spec(request, plan))
    if environ.dry_run_requested():
        from hpctrain.launch.dry_run import print_plan

        print_plan(submission)
        raise SystemExit(0)
    existing = _decide(submission)
    coordinator: _Coordinator | None = None
    if existing.begins:
        with claimed(request.paths):
            # Somebody else may have been quicker.
            existing = _decide(submission)
            if existing.begins:
                write_plan_and_spec(submission)
                coordinator = _Coordinator(submission, world)
    if existing is Existing.FOLLOW:
        raise ConfigError(
            f"run {request.run_config.name!r} is running in another process already, and ranks "
            f"cannot follow it. Choose another RunConfig(name=...), or: hpctrain attach "
            f"{request.paths.root}"
        )
    if coordinator is None:
        result = Result.from_path(request.paths.root)
        return _Opening(
            paths=request.paths, start=None, content=b"", addresses=[], secret=b"", result=result
        ), None
    opening = _Opening(
        paths=request.paths,
        start=coordinator.attempt_start,
        content=submission.spec.to_bytes(),
        addresses=coordinator.addresses,
        secret=coordinator.secret,
    )
    return opening, coordinator


def _decide(submission: Submission) -> Existing:
    paths = submission.request.paths
    existing, _ = decide_on_existing(paths, submission.spec, job_is_alive)
    return existing


class _Verdict:
    """What rank 0 says of a run that has failed, and the end of ranks that do not hear it."""

    def __init__(self) -> None:
        self._body = b""
        self._heard = threading.Event()
        self._noticed = threading.Event()

    def hear(self, frame: Frame) -> None:
        """Take rank 0's word in; called from the thread of the link."""
        self._body = frame.body
        self._heard.set()
        # The training function may hang in a collective that a failed peer will not join.
        threading.Thread(target=self._end_unless_noticed, daemon=True).start()

    def hear_nothing_more(self) -> None:
        """Note that rank 0 is gone; called from the thread of the link."""
        self._heard.set()
        self._end_unless_noticed()

    def error(self, otherwise: str) -> Exception:
        """Return the error to raise here, after a moment in which rank 0 can say what it is."""
        self._heard.wait(_GRACE_S)
        self._noticed.set()
        error: Exception = spec.unpack(self._body) if self._body else TrainingFailedError(otherwise)
        return error

    def _end_unless_noticed(self) -> None:
        if not self._noticed.wait(_GRACE_S):
            print(
                "hpctrain: the run has failed elsewhere, and this rank hangs; ending it.",
                file=sys.stderr,
                flush=True,
            )
            mpi.abort(1)


def _run_rank(opening: _Opening, world: World, comm: Comm) -> Result:
    """Do what a rank's own process does in the other homes. Collective."""
    run_spec = spec.RunSpec.from_bytes(opening.content)
    start, settings = opening.start, run_spec.settings
    assert start is not None
    export_thread_counts(settings)
    verdict = _Verdict()
    link = Link(
        connect_tcp(opening.addresses, opening.secret, timeout_s=_CONNECT_TIMEOUT_S),
        attempt=start.attempt,
        on_lost=verdict.hear_nothing_more,
    )
    link.handle("run-failed", verdict.hear)
    session = Session(
        world=world,
        paths=opening.paths,
        channel=LinkChannel(link),
        first_report=start.first_report,
        checkpoint=start.checkpoint,
        commit_timeout_s=settings.commit_timeout_s,
    )
    connect_session(link, session)
    answer_with_stacks(link, opening.paths, world)
    link.introduce(world.world_rank, hello_details(world))
    phase = "importing"

    def enter(name: str) -> None:
        nonlocal phase
        phase = name
        link.post("phase", phase=name)

    previous = _forward_signals(link)
    try:
        settle(settings)
        value = run_training(
            run_spec, paths=opening.paths, session=session, comm=comm, on_phase=enter
        )
        link.post(
            "done",
            pack_return_value(world, value),
            reports=session.reports,
            told=session.was_told,
        )
        answer = link.next_command()
    except BaseException as error:
        failure = describe_exception(
            error,
            rank=world.world_rank,
            hostname=world.hostname,
            pid=os.getpid(),
            report=session.reports,
            phase=phase,
        )
        link.post("failed", json.dumps(failure.to_json()).encode())
        raise verdict.error(failure.message) from error
    finally:
        if previous is not None:
            signal.signal(signal.SIGUSR2, previous)
    if answer is None:
        raise verdict.error("rank 0 is gone")
    link.post("bye")
    link.close()
    result: Result = spec.unpack(answer.body)
    if result.error is not None:
        raise result.error
    return result


def _forward_signals(link: Link) -> Any:
    """Pass SIGUSR2 on to the executor; return the handler that was there, None outside main."""
    if threading.current_thread() is not threading.main_thread():
        return None
    return signal.signal(signal.SIGUSR2, lambda *_: link.post_signal("SIGUSR2"))


class _Coordinator(threading.Thread):
    """The executor's part, in a thread of rank 0."""

    def __init__(self, submission: Submission, world: World) -> None:
        super().__init__(name="hpctrain-coordinator", daemon=True)
        request = submission.request
        self._world = world
        self._recorder = Recorder(
            paths=request.paths,
            run_config=request.run_config,
            status=initial_status(request.paths, submission.plan, request.run_config),
        )
        self.attempt_start = self._recorder.begin_attempt(request.resume_from)
        self._hub = Hub(attempt=self.attempt_start.attempt)
        self.secret = secrets.token_bytes(SECRET_BYTES)
        self.addresses = self._hub.listen_tcp(self.secret)
        self._tracker = AttemptTracker(
            world_size=world.world_size, first_report=self.attempt_start.first_report
        )
        self._workers: dict[int, WorkerMetadata] = {}
        self._examiner = Examiner()
        self._progress = Progress(
            world_size=world.world_size,
            first_report=self.attempt_start.first_report,
            now=time.monotonic(),
        )
        self._hang = HangWatch(
            self._progress,
            config=request.run_config.failure_config,
            broadcast=self._hub.send,
            examine=self._examine,
            workers=self._workers,
            paths=request.paths,
            attempt=self.attempt_start.attempt,
            checkpoint=self._recorder.checkpoint_path,
            note=self._recorder.note,
            may_end=False,
        )
        verbose = request.run_config.verbose
        self._follower = Follower(request.paths, verbose=0) if verbose else None

    def run(self) -> None:
        """Watch the ranks until they have ended, and write it all down."""
        error: BaseException | None = None
        try:
            self._watch()
        except BaseException as raised:
            error = raised
        self._recorder.end_attempt(error=error, reports=self._tracker.reports)
        self._recorder.end(error)
        if self._follower is not None:
            self._follower.step(final=True)
        if error is None or self._tracker.is_done:
            result = Result.from_path(self._recorder.paths.root)
            body = spec.pack(
                Result(path=result.path, status=result.status, error=_plain(error)),
                what="the result",
            )
            self._hub.send("finished", body)
        else:
            self._hub.send("run-failed", spec.pack(_plain(error), what="the error"))
        deadline = time.monotonic() + _GRACE_S
        while self._hub.num_ranks and time.monotonic() < deadline:
            self._hub.poll(_POLL_S)
        self._hub.close()

    def _watch(self) -> None:
        tracker, recorder = self._tracker, self._recorder
        stop = StopAgreement(recorder, tracker, self._hub.send)
        failed_at: float | None = None
        while not tracker.is_done:
            frames = self._hub.poll(_POLL_S) + self._examiner.frames()
            now = time.monotonic()
            self._progress.listen(now)
            for frame in frames:
                self._progress.feed(frame, now)
                if frame.op == "hello":
                    self._note(frame.header)
                for round_ in tracker.feed(frame):
                    recorder.record(round_, self._hub.send)
            recorder.answer(tracker, self._hub.send)
            recorder.tick(phase=tracker.phase, reports=tracker.reports)
            if self._follower is not None:
                self._follower.step()
            stop.step()
            if len(self._workers) == self._world.world_size:
                self._hang.step()
            if self._hang.stalled != recorder.status.stalled:
                recorder.change(stalled=self._hang.stalled)
            if failed_at is None and (tracker.has_failed or tracker.uneven_reports()):
                failed_at = time.monotonic()
            if failed_at is not None and time.monotonic() - failed_at > 0.5:
                break
        if complaint := tracker.uneven_reports():
            raise TrainingFailedError(complaint)
        if tracker.has_failed:
            recorder.keep_failures(tracker.failures.values())
            failure = explain_failure(
                tracker,
                workers=[self._workers[rank] for rank in sorted(self._workers)],
                paths=recorder.paths,
                attempt=recorder.status.attempt,
                checkpoint=recorder.checkpoint_path(),
                launcher_output="",
            )
            recorder.call("after_exception", failure.worker_failures)
            raise failure
        recorder.keep_return_value(tracker.return_value)
        recorder.change(phase="done", reports=tracker.reports)
        recorder.raise_if_stopped(tracker.reports, told=tracker.was_told)

    def _examine(self, pids: Mapping[int, int], silent: Sequence[int]) -> None:
        """Look at ranks of this host; nodes have no agents here."""
        run, attempt = str(self._recorder.paths.root), self.attempt_start.attempt
        header = {"attempt": attempt, "run": run, "silent": silent}
        here = {
            rank: pid
            for rank, pid in pids.items()
            if self._workers[rank].hostname == self._world.hostname
        }
        self._examiner.begin(Frame(header, b"", b""), here)

    def _note(self, header: Any) -> None:
        worker = WorkerMetadata.from_hello(header)
        self._workers[worker.rank] = worker
        if len(self._workers) == self._world.world_size:
            ordered = sorted(self._workers.values(), key=lambda w: (w.node_rank, w.rank))
            self._recorder.change(
                state=RunState.RUNNING,
                world_size=self._world.world_size,
                nodes=tuple(dict.fromkeys(w.hostname for w in ordered)),
                phase="importing",
            )


def _plain(error: BaseException | None) -> Any:
    """Return an error that every rank can open."""
    if error is None or isinstance(error, HpctrainError):
        return error
    return TrainingFailedError(f"{type(error).__name__}: {error} (on {socket.gethostname()})")
