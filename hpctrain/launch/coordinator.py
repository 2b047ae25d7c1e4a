"""`Coordinator`: the executor's part where nobody has started the ranks, in a thread of rank 0."""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from hpctrain.control.hub import SECRET_BYTES, Hub
from hpctrain.control.proof import Credentials
from hpctrain.control.wire import Frame
from hpctrain.errors import HpctrainError, RunStoppedError, TrainingFailedError
from hpctrain.execute.examine import Examiner
from hpctrain.execute.explain import explain_failure
from hpctrain.execute.hang import HangWatch
from hpctrain.execute.progress import Progress
from hpctrain.execute.roll_call import WorkerMetadata
from hpctrain.execute.stop import StopAgreement
from hpctrain.execute.tracker import AttemptTracker
from hpctrain.launch.follow import Follower
from hpctrain.launch.only_attempt import begin_only_attempt
from hpctrain.launch.request import Submission
from hpctrain.own_time import Deadline
from hpctrain.plan import spec
from hpctrain.result import Result
from hpctrain.rundir.status import RunState
from hpctrain.world import World

GRACE_S = 5.0
"""Seconds that a rank whose peer has failed may take to notice it by itself, and to raise."""
_POLL_S = 0.25


class Coordinator(threading.Thread):
    """Watches the ranks and writes down what they do, for one attempt; made by rank 0.

    Parameters
    ----------
    submission
        What is run.
    world
        Where rank 0 stands.
    """

    def __init__(self, submission: Submission, world: World) -> None:
        super().__init__(name="hpctrain-coordinator", daemon=True)
        request = submission.request
        self._world = world
        self._recorder, self._departure, self.attempt_start = begin_only_attempt(submission)
        self._journal = self._recorder.journal
        self._hub = Hub(attempt=self.attempt_start.attempt)
        self.secret = secrets.token_bytes(SECRET_BYTES)
        self.addresses = self._hub.listen_tcp(
            Credentials(
                self.secret, run=str(request.paths.root), attempt=self.attempt_start.attempt
            ),
            only_here=world.num_nodes == 1,
        )
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
            note=self._journal.note,
            may_end=False,
        )
        verbose = request.run_config.verbose
        self._follower = Follower(request.paths, verbose=0) if verbose else None

    def run(self) -> None:
        """Watch the ranks until they have ended, write it all down, and tell them."""
        try:
            with self._journal.kept_alive():
                op, body = self._outcome()
        except BaseException as error:
            # A run directory that is gone, a full disk: the ranks wait for a word all the same.
            op, body = "run-failed", spec.pack(_plain(error), what="the error")
        self._hub.send(op, body)
        deadline = Deadline(GRACE_S)
        while self._hub.num_ranks and not deadline.is_over:
            self._hub.poll(_POLL_S)
        self._hub.close()

    def _outcome(self) -> tuple[str, bytes]:
        """Return what the ranks are told once the run has ended: which word, and its content."""
        error: BaseException | None = None
        try:
            self._watch()
            self._recorder.finish_validations(self._departure.step)
        except BaseException as raised:
            error = raised
        self._recorder.end_attempt(error=error, reports=self._tracker.reports)
        self._recorder.end(error)
        if self._follower is not None:
            self._follower.step(final=True)
        if error is not None and not self._tracker.is_done:
            return "run-failed", spec.pack(_plain(error), what="the error")
        result = Result.from_path(self._recorder.paths.root)
        result = Result(path=result.path, status=result.status, error=_plain(error))
        return "finished", spec.pack(result, what="the result")

    def _watch(self) -> None:
        tracker, recorder = self._tracker, self._recorder
        stop = StopAgreement(recorder, tracker, self._hub.send)
        failed_at: float | None = None
        while not tracker.is_done:
            frames = self._hub.poll(_POLL_S) + self._examiner.frames()
            self._progress.listen(time.monotonic())
            for frame in frames:
                self._progress.feed(frame)
                if frame.op == "hello":
                    self._welcome(frame.header)
                for round_ in tracker.feed(frame):
                    recorder.record(round_, self._hub.send)
            recorder.answer(tracker, self._hub.send)
            recorder.tick(phase=tracker.phase, reports=tracker.reports)
            if self._follower is not None:
                self._follower.step()
            self._departure.step()
            stop.step()
            if len(self._workers) == self._world.world_size:
                self._hang.step()
            if self._hang.stalled != self._journal.status.stalled:
                self._journal.change(stalled=self._hang.stalled)
            if failed_at is None and (tracker.has_failed or tracker.unmatched_calls()):
                failed_at = time.monotonic()
            if failed_at is not None and time.monotonic() - failed_at > 0.5:
                break
        if complaint := tracker.unmatched_calls():
            raise TrainingFailedError(complaint)
        if tracker.has_failed:
            recorder.keep_failures(tracker.failures.values())
            if any(failure.type == "KeyboardInterrupt" for failure in tracker.failures.values()):
                # mpiexec and srun send Ctrl-C to every rank. No cause is to be fixed.
                raise RunStoppedError(
                    f"the run was interrupted (Ctrl-C) after report {tracker.reports}; fit() with "
                    f"name={self._journal.status.name!r} and the same storage_path resumes from "
                    f"{recorder.checkpoint_path() or 'its beginning'}."
                )
            failure = explain_failure(
                tracker,
                workers=[self._workers[rank] for rank in sorted(self._workers)],
                paths=recorder.paths,
                attempt=self._journal.status.attempt,
                checkpoint=recorder.checkpoint_path(),
                launcher_output=None,
            )
            recorder.call("after_exception", failure.worker_failures)
            raise failure
        recorder.keep_return_value(tracker.return_value)
        self._journal.change(phase="done", reports=tracker.reports)
        recorder.raise_if_unfinished(tracker.reports, told=tracker.was_told)

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

    def _welcome(self, header: Any) -> None:
        worker = WorkerMetadata.from_hello(header)
        self._workers[worker.rank] = worker
        if len(self._workers) == self._world.world_size:
            ordered = sorted(self._workers.values(), key=lambda w: (w.node_rank, w.rank))
            self._journal.change(
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
