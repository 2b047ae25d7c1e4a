"""`AttemptLoop`: the loop over one attempt, the same in every home."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from hpctrain import timeouts
from hpctrain.config import FailureConfig
from hpctrain.errors import RunStoppedError, TrainingFailedError, WorkerError, WorkerHangError
from hpctrain.execute.attempt_executor import AttemptExecutor
from hpctrain.execute.explain import explain_failure, first_failure
from hpctrain.execute.hang import HangWatch
from hpctrain.execute.live_record import LiveRecord
from hpctrain.execute.profile_requests import ProfileRequests
from hpctrain.execute.recorder import Recorder
from hpctrain.execute.tracker import ReportRound
from hpctrain.execute.waits import ask_where_ranks_are, explain_waits
from hpctrain.own_time import Deadline
from hpctrain.worker.group_record import GroupRecord

if TYPE_CHECKING:
    from hpctrain.execute.slow_nodes import SlowNode, SlowNodes

_POLL_S = 0.25
_FIRST_STEPS_S = 0.25


class Step(Protocol):
    """What has something to do from time to time: `Preemption`, `StopAgreement`, ..."""

    def step(self) -> None:
        """Take the next step, if there is one to take."""


class AttemptLoop:
    """Takes in what the ranks of one attempt send, records it, and ends the attempt.

    Parameters
    ----------
    recorder
        Records it, and decides whether the run is to stop.
    attempt
        The ranks, and what they have sent.
    preemption
        Notices when the run has to leave its job; None where it never has to.
    stopping
        Lets the ranks stop once the run is to stop: `StopAgreement`, or `ScalingPolicy` around it;
        None where no stop is ever requested.
    failure_config
        When ranks hang.
    may_end_hangs
        Whether ranks that hang are ended, or only named.
    in_each_turn
        What this home does besides.
    """

    def __init__(
        self,
        recorder: Recorder,
        attempt: AttemptExecutor,
        *,
        preemption: Step | None = None,
        stopping: Step | None = None,
        failure_config: FailureConfig,
        may_end_hangs: bool = True,
        in_each_turn: Callable[[], None] = lambda: None,
    ) -> None:
        self._recorder = recorder
        self._attempt = attempt
        self._ranks = attempt.ranks
        self._preemption = preemption
        self._stopping = stopping
        self._failure_config = failure_config
        self._may_end_hangs = may_end_hangs
        self._in_each_turn = in_each_turn
        self._hang: HangWatch | None = None
        self._live = LiveRecord(recorder.run_record, attempt)
        self._slow: SlowNodes | None = None
        self._first_steps: Deadline | None = None
        self._profiles = ProfileRequests(
            recorder.paths, attempt.ranks.broadcast, recorder.run_record.note
        )

    def run(self) -> None:
        """Return once all ranks have returned, or some have failed and the others have answered.

        Raises
        ------
        RunStoppedError
            If ranks do not return that were asked to.
        Resize
            If the next attempt is to have more workers, or no slow node.
        WorkerHangError
            If ranks hang, and may be ended for it.
        """
        try:
            while not self._attempt.is_finished():
                self.turn(self._attempt.poll(_POLL_S))
        finally:
            # The last that is seen of the ranks.
            self._live.write()
        if self._only_collectives_failed():
            self._ask_where_others_are()

    def turn(self, rounds: Iterable[ReportRound]) -> None:
        """Record the reports that are there, and do all else that is due, once for all of them."""
        recorder, tracker = self._recorder, self._attempt.tracker
        for round_ in rounds:
            recorder.record(round_, self._ranks.broadcast)
        recorder.tick(phase=tracker.phase, reports=tracker.reports)
        # Last: the tick takes in what a tuner has sent, which ends no other wait for ranks.
        recorder.answer(tracker, self._ranks.broadcast)
        if self._preemption is not None:
            self._preemption.step()
        self._in_each_turn()
        if self._stopping is not None:
            self._stopping.step()
        self._profiles.step()
        self._live.step()
        self._look_for_slow_nodes()
        self._look_for_hangs()

    @property
    def slow_nodes(self) -> Mapping[str, tuple[SlowNode, float]]:
        """Nodes that are slow, and when they were named, in seconds of ``time.monotonic``."""
        return {} if self._slow is None else self._slow.slow

    def conclude(self) -> None:
        """Store what the training function returned, or raise why it did not.

        Raises
        ------
        RunStoppedError
            If the ranks have returned because the run was to stop.
        TrainingFailedError
            If ranks failed, or did not make the same calls.
        LaunchError
            If what started the ranks ended without a reason.
        """
        recorder, tracker = self._recorder, self._attempt.tracker
        if mismatch := tracker.unmatched_calls():
            raise TrainingFailedError(mismatch)
        self._live.write()
        value = self._attempt.finish_training()
        if tracker.has_failed:
            # Before callbacks, which may read them.
            recorder.keep_failures(tracker.failures.values())
            error = self._explain()
            recorder.call("after_exception", error.worker_failures)
            raise error from error.worker_failures.get(error.rank)
        # Also of a run that is stopped: until another attempt returns, it is the newest there is.
        recorder.keep_return_value(value, notified=tracker.was_notified)
        recorder.raise_if_unfinished(tracker.reports, notified=tracker.was_notified)
        recorder.run_record.change(phase="done", reports=tracker.reports)

    def _explain(self) -> WorkerError:
        recorder, ranks, tracker = self._recorder, self._ranks, self._attempt.tracker
        failures = tracker.failures.values()
        if ranks.share_a_terminal and any(f.type == "KeyboardInterrupt" for f in failures):
            # mpiexec and srun send Ctrl-C to every rank. No cause is to be fixed.
            raise RunStoppedError(
                f"the run was interrupted (Ctrl-C) after report {tracker.reports}; fit() with "
                f"name={recorder.run_record.status.name!r} and the same storage_path resumes from "
                f"{recorder.checkpoint_path() or 'its beginning'}."
            )
        # What has forked ranks knows how they died, and which ones the launcher ended for another.
        # Otherwise the launcher prints it: srun at once, others after they cleaned up; no launcher
        # does where a node is silent.
        rank, failure = first_failure(tracker)
        death = None
        if failure is None and not any(ranks.lost_nodes.values()):
            is_for_memory = bool(tracker.memory.get(rank, {}).get("kills"))
            silent = [rank for rank in tracker.lost if rank not in tracker.failures]
            death = ranks.await_death_notice([rank] if is_for_memory else silent)
        return explain_failure(
            tracker,
            workers=ranks.workers,
            paths=recorder.paths,
            attempt=recorder.run_record.status.attempt,
            checkpoint=recorder.checkpoint_path(),
            launcher_output=ranks.launcher_output(),
            death=death,
            calls=self._explain_collectives(),
        )

    def _explain_collectives(self) -> tuple[str, ...]:
        if not self._only_collectives_failed():
            return ()
        failed = {
            failure.rank: [GroupRecord.from_json(group) for group in failure.collectives]
            for failure in self._attempt.tracker.failures.values()
        }
        return explain_waits(self._attempt.progress, failed).lines

    def _only_collectives_failed(self) -> bool:
        """Return whether the cause is in a rank that has not failed, and has not come."""
        tracker = self._attempt.tracker
        silent = tracker.lost.keys() - tracker.failures.keys()
        failures = tracker.failures.values()
        return not silent and bool(failures) and all(f.collectives for f in failures)

    def _ask_where_others_are(self) -> None:
        """Learn who has not called the collective that has failed, before all ranks are ended."""
        tracker, progress, recorder = self._attempt.tracker, self._attempt.progress, self._recorder
        others = [rank for rank in progress.unfinished() if rank not in tracker.failures]
        ask_where_ranks_are(
            progress, self._ranks.broadcast, recorder.paths, recorder.run_record.status.attempt
        )
        deadline = Deadline(timeouts.FAILED_COLLECTIVE_S)
        while not all(rank in tracker.lost or progress.has_answered(rank) for rank in others):
            if deadline.is_over:
                return
            self.turn(self._attempt.poll(min(_POLL_S, deadline.left_s)))

    def _look_for_slow_nodes(self) -> None:
        run_record = self._recorder.run_record
        self._slow = self._slow or self._make_slow_nodes()
        if self._slow is not None and not self._attempt.tracker.has_failed:
            self._slow.step()
        text = "" if self._slow is None else self._slow.text
        if text != run_record.status.slow:
            run_record.change(slow=text)

    def _make_slow_nodes(self) -> SlowNodes | None:
        if len(self._ranks) == 1 or len(self._ranks.workers) < len(self._ranks):
            return None
        self._first_steps = self._first_steps or Deadline(_FIRST_STEPS_S)
        if not self._first_steps.is_over:
            return None
        # Its import is not to delay the start of ranks.
        from hpctrain.execute.slow_nodes import SlowNodes

        run_record = self._recorder.run_record
        return SlowNodes(
            self._attempt.progress,
            broadcast=self._ranks.broadcast,
            workers=self._ranks.workers,
            note=run_record.note,
            attempt=run_record.status.attempt,
            advice=self._advise_on_slow_node,
            on_times=self._recorder.loop_waits.sample,
        )

    def _advise_on_slow_node(self, slow: SlowNode) -> str:
        run, status = self._recorder.paths.root, self._recorder.run_record.status
        what = f"'hpctrain profile {run} --ranks {slow.ranks[0]}' shows what it does."
        if self._failure_config.slow_node_factor is not None or len(status.nodes) == 1:
            return what
        exclude = f", and SlurmConfig(sbatch_args=['--exclude={slow.node}']) this one"
        return (
            f"{what} FailureConfig(slow_node_factor=1.5) leaves such a node out"
            f"{exclude if status.job_id else ''}, from the next fit() on."
        )

    def _look_for_hangs(self) -> None:
        tracker, run_record = self._attempt.tracker, self._recorder.run_record
        if self._hang is None:
            if len(self._ranks.workers) < len(self._ranks):
                return
            self._hang = self._make_hang_watch()
        try:
            if not tracker.has_failed:
                self._hang.step()
        except WorkerHangError as error:
            for failure in self._hang.failures(error):
                tracker.failures.setdefault(failure.rank, failure)
            self._recorder.keep_failures(tracker.failures.values())
            self._recorder.call("after_exception", error.worker_failures)
            raise
        if self._hang.stalled != run_record.status.stalled:
            run_record.change(stalled=self._hang.stalled)

    def _make_hang_watch(self) -> HangWatch:
        run_record, ranks = self._recorder.run_record, self._ranks
        return HangWatch(
            self._attempt.progress,
            config=self._failure_config,
            broadcast=ranks.broadcast,
            examine=ranks.examine,
            workers=ranks.workers,
            paths=self._recorder.paths,
            attempt=run_record.status.attempt,
            checkpoint=self._recorder.checkpoint_path,
            note=run_record.note,
            may_end=self._may_end_hangs,
        )
