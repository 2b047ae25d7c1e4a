"""`Coordinator`: the executor where the user has started the ranks, in a thread of rank 0."""

from __future__ import annotations

import socket
import threading
from typing import Any

from hpctrain import timeouts
from hpctrain.errors import HpctrainError, TrainingFailedError
from hpctrain.execute.attempt_executor import AttemptExecutor
from hpctrain.execute.attempt_loop import AttemptLoop
from hpctrain.execute.stop import StopAgreement
from hpctrain.launch.existing_ranks import ExistingRanks
from hpctrain.launch.follow import Follower
from hpctrain.launch.only_attempt import begin_only_attempt
from hpctrain.launch.request import Submission
from hpctrain.plan import spec
from hpctrain.printable import describe_error
from hpctrain.result import Result
from hpctrain.rundir.states import RunEvent
from hpctrain.world import World


class Coordinator(threading.Thread):
    """Watches the ranks and records one attempt; made by rank 0.

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
        self._recorder, self._preemption, self.attempt_start = begin_only_attempt(submission)
        self._run_record = self._recorder.run_record
        self.ranks = ExistingRanks(
            request.paths,
            attempt=self.attempt_start.attempt,
            world=world,
            on_complete=self._note_nodes,
        )
        self._attempt = AttemptExecutor(self.ranks, first_report=self.attempt_start.first_report)
        verbose = request.run_config.verbose
        self._follower = Follower(request.paths, verbose=0) if verbose else None
        self._loop = AttemptLoop(
            self._recorder,
            self._attempt,
            preemption=self._preemption,
            stopping=StopAgreement(self._recorder, self._attempt.tracker, self.ranks.broadcast),
            failure_config=request.run_config.failure_config,
            may_end_hangs=False,
            in_each_turn=self._follow,
        )

    def run(self) -> None:
        """Watch the ranks until they have ended, record the end, and send it to them."""
        try:
            with self._run_record.kept_alive():
                op, body = self._outcome()
        except BaseException as error:
            # A run directory that is gone, a full disk: the ranks wait for a command all the same.
            op, body = "run-failed", spec.pack(_plain(error), what="the error")
        self.ranks.dismiss(op, body, patience_s=timeouts.SPMD_END_S)

    def _outcome(self) -> tuple[str, bytes]:
        """Return what is sent to the ranks once the run has ended: the operation, and its body."""
        error: BaseException | None = None
        tracker = self._attempt.tracker
        try:
            self._loop.run()
            self._loop.conclude()
            self._recorder.finish_validations(self._preemption.step)
        except BaseException as raised:
            error = raised
        self._recorder.end_attempt(error=error, reports=tracker.reports)
        self._recorder.end(error)
        self._follow(final=True)
        if error is not None and not tracker.is_done:
            return "run-failed", spec.pack(_plain(error), what="the error")
        result = Result.from_path(self._recorder.paths.root)
        result = Result(path=result.path, status=result.status, error=_plain(error))
        return "finished", spec.pack(result, what="the result")

    def _follow(self, *, final: bool = False) -> None:
        if self._follower is not None:
            self._follower.step(final=final)

    def _note_nodes(self, nodes: tuple[str, ...]) -> None:
        self._run_record.advance(
            RunEvent.JOINED, world_size=len(self.ranks), nodes=nodes, phase="importing"
        )


def _plain(error: BaseException | None) -> Any:
    """Return an error that every rank can open."""
    if error is None or isinstance(error, HpctrainError):
        return error
    return TrainingFailedError(f"{describe_error(error)} (on {socket.gethostname()})")
