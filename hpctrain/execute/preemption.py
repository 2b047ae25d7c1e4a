"""`Preemption`: notices that a run has to leave its job, and lets it go on in another."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence
from pathlib import Path

from hpctrain import environ, timeouts
from hpctrain.config import RunConfig
from hpctrain.errors import LaunchError, PreemptionError, RunStoppedError, TrainingFailedError
from hpctrain.execute.failure_policy import (
    NextJob,
    choose_next_job,
    decide,
    interpret_signal,
)
from hpctrain.execute.question import Question
from hpctrain.execute.recorder import Recorder
from hpctrain.execute.stop_decision import StopKind, StopNotice
from hpctrain.execute.time_limit import TimeLimit
from hpctrain.execute.tracker import AttemptTracker
from hpctrain.execute.tuner_sign import leave_to_tuner, shows_life
from hpctrain.log import log
from hpctrain.plan.launch_plan import LaunchPlan
from hpctrain.slurm.client import find_submit_limit
from hpctrain.slurm.job import read_own_job, requeue
from hpctrain.slurm.output import Job
from hpctrain.slurm.submit import submit_successor
from hpctrain.slurm_config import time_limit_minutes

# srun and mpiexec name the signal that ended a process. A warning reaches every step of a job, and
# it ends what has just begun there, as agents and ranks handle it only when Python has started.
_KILLED_BY_WARNING = re.compile(r"User defined signal 2|srun: error: .*: User defined signal 1\b")

# As a rule Slurm answers sooner. Ranks receive the stop after it even if no answer has come.
_ANSWER_S = 1.0


class Preemption:
    """Decides when a run must leave its job, and how it continues. One for an executor.

    It requests the stop of the recorder (``request_stop``), and others act on it. A run that is in
    no job has nothing to leave: only signals and its own time end it.

    Parameters
    ----------
    plan
        On what the run runs.
    run_config
        Its budgets, and its own time.
    recorder
        Holds the stop decision, and what has gone wrong so far.
    signals
        Names of the signals that this process got; signal handlers append to the list.
    """

    def __init__(
        self, *, plan: LaunchPlan, run_config: RunConfig, recorder: Recorder, signals: list[str]
    ) -> None:
        self._plan = plan
        self._run_config = run_config
        self._recorder = recorder
        self._run_record = recorder.run_record
        self._signals = signals
        self._total_deadline: float | None = None
        self._total_end: float | None = None
        self._noted_end: float | None = None
        # Names of signals of which Slurm was asked what they mean.
        self._interpreted: set[str] = set()
        # What a signal means that the run stops for already.
        self._asked: tuple[Question[Job | None], str, StopNotice] | None = None
        # Slurm warns, if it was asked to, the steps that there are: in a short job, which it may
        # look at only once before its end, that can be before the first.
        self._time_limit = TimeLimit(notice_s=plan.stop_notice_s) if plan.in_job else None

    def begin(self) -> None:
        """Find out when the time of the job and of the whole run ends."""
        if self._time_limit is not None:
            self._time_limit.begin()
        total = self._run_config.total_time
        left = math.inf
        if total is not None:
            left = time_limit_minutes(total) * 60 - self._run_record.history.used_s
            self._total_deadline = time.monotonic() + left
            self._total_end = time.time() + left
        self._run_record.change_later(deadline=self._note_end())
        if left <= 0:
            self._stop_for_total_time()

    def step(self) -> None:
        """See if the run is to leave while its ranks are well."""
        self._refine()
        self.take_signals(self._signals)
        if self._time_limit is not None and self._recorder.decision.yields_to(StopKind.TIME_LIMIT):
            notice = self._time_limit.step()
            if notice is not None:
                self._recorder.request_stop(notice)
            elif self._time_limit.end != self._noted_end:
                self._run_record.change(deadline=self._note_end())
        if self._total_deadline is not None and time.monotonic() > self._total_deadline:
            self._stop_for_total_time()

    def take_signals(self, names: Sequence[str]) -> None:
        """Request the stop that follows from signals from outside.

        Slurm is asked what they mean, once for those of a name: all ranks get the same. It is
        waited for for a moment; a later `step` refines the stop, once Slurm has answered. Also
        where a reason to stop stands, as the job may end earlier than that says.
        """
        for name in dict.fromkeys(names):
            if self._asked is not None:
                # The answer may replace the reason that stands.
                return
            if name not in self._interpreted or self._recorder.decision.yields_to(
                StopKind.PREEMPTION
            ):
                self._interpreted.add(name)
                self._recorder.request_stop(self._interpret(name))

    def _interpret(self, name: str) -> StopNotice:
        question = Question(self._read_job, name="hpctrain-signal")
        question.wait(_ANSWER_S)
        is_open = question.is_open
        notice = self._describe(name, None if is_open else question.answer)
        if is_open:
            self._asked = question, name, notice
        return notice

    def _refine(self, patience_s: float = 0.0) -> None:
        """Take in what a signal meant, if Slurm has answered."""
        if self._asked is None:
            return
        question, name, before = self._asked
        question.wait(patience_s)
        if not question.is_open:
            self._asked = None
            self._recorder.refine_stop(before, self._describe(name, question.answer))

    def _describe(self, name: str, job: Job | None) -> StopNotice:
        return interpret_signal(name, job, now=time.time(), notice_s=self._plan.stop_notice_s)

    def look_after_failure(self, tracker: AttemptTracker, error: BaseException) -> None:
        """See if ranks have failed, or could not start, because Slurm ends the job, or has done so.

        Parameters
        ----------
        tracker
            What they have sent.
        error
            What has ended the attempt.
        """
        # Which budget pays for the end follows from the answer.
        self._refine(timeouts.CONTROLLER_S)
        if self._recorder.stop is not None:
            return
        is_sign = tracker.signals or any(tracker.lost.values()) or isinstance(error, LaunchError)
        warning = _warning_that_killed(error) if self._plan.in_job else None
        if self._signals:
            self._recorder.request_stop(self._describe(self._signals[0], self._read_job()))
        elif warning is not None:
            self._recorder.request_stop(self._describe(warning, self._read_job()))
        elif self._plan.in_job and is_sign:
            job = self._read_job()
            if job is not None and (job.is_preempted or not job.is_running):
                self._recorder.request_stop(self._describe("SIGTERM", job))

    def give_job_up(self, why: str) -> None:
        """Let the run leave for want of nodes."""
        if self._plan.in_job:
            self._recorder.request_stop(StopNotice(kind=StopKind.PREEMPTION, why=why))

    def leave(self, error: LaunchError | TrainingFailedError) -> bool:
        """Let the run go on in another job, if its own ends and the budgets allow it.

        Parameters
        ----------
        error
            What ended the attempt.

        Returns
        -------
        bool
            Whether it does; otherwise `error` has nothing to do with the end of the job.

        Raises
        ------
        TrainingFailedError
            If the budgets do not allow it.
        RunStoppedError
            If a person has to decide how it goes on, or the tuner of its sweep submits the next
            job.
        LaunchError
            If Slurm does not answer what becomes of the job, or takes no other one.
        """
        recorder = self._recorder
        self._refine(timeouts.CONTROLLER_S)
        recorder.check_stop_request()
        notice = recorder.stop
        if notice is None or notice.kind.failure is None or not self._plan.in_job:
            return False
        decision = decide(
            notice.kind.failure, self._run_record.history, self._run_config.failure_config
        )
        if not decision.restart:
            self._run_record.note("gave-up", reason=decision.reason)
            spent = decision.number is not None
            kind = PreemptionError if spent else TrainingFailedError
            raise kind(f"{error}\n{decision.reason}") from error
        stopped = RunStoppedError(
            f"the run stopped because {notice.why}, and a person has to decide how it goes on: "
            f"fit() with the same name resumes it from "
            f"{recorder.checkpoint_path() or 'its beginning'}."
        )
        left: float = timeouts.CONTROLLER_S
        if notice.deadline is not None:
            left = max(1.0, min(left, notice.deadline - time.time()))
        job = self._await_job(notice, patience_s=left)
        if recorder.stop is not notice:
            # A person has asked for the stop meanwhile.
            return False
        is_ours = self._plan.launcher == "slurm"
        how = choose_next_job(
            job,
            notice,
            now=time.time(),
            restarts=environ.restart_count(),
            is_ours=is_ours,
            requeue=self._plan.requeue,
        )
        if how is NextJob.STOP or job is None:
            raise stopped from error
        self._run_record.hand_over(recorder.progress())
        if how is NextJob.REQUEUE:
            refusal = self._requeue(job, why=notice.why, patience_s=left)
            if refusal is not None:
                if not is_ours:
                    raise stopped from refusal
                how = NextJob.SUCCESSOR
        elif how is NextJob.LEAVE:
            self._note_requeued(job, why=notice.why)
        if how is NextJob.SUCCESSOR:
            self._submit_successor(notice.why, error, patience_s=left)
        return True

    def _await_job(self, notice: StopNotice, *, patience_s: float) -> Job | None:
        """Return what Slurm reports of the job; of one that is preempted wait for it without end.

        Slurm queues such a job again after it has ended this process, and the run with it, unless
        that is over.
        """
        while True:
            try:
                return read_own_job(patience_s=patience_s)
            except LaunchError as error:
                may_be_queued = self._plan.launcher == "slurm" and self._plan.requeue
                is_taken = notice.kind is StopKind.PREEMPTION and may_be_queued
                if not (error.transient and is_taken):
                    raise
                log(f"{error} Asking what becomes of the job until Slurm answers or ends it.")
            self._recorder.check_stop_request()
            if self._recorder.stop is not notice:
                return None

    def _note_end(self) -> float | None:
        """Remember when the job ends; return when the first of the ends comes."""
        self._noted_end = None if self._time_limit is None else self._time_limit.end
        ends = (self._noted_end, self._total_end)
        return min((end for end in ends if end is not None), default=None)

    def _submit_successor(self, why: str, error: Exception, *, patience_s: float) -> None:
        """Submit another job; raise RunStoppedError if a tuner is to do so."""
        paths, checkpoint = self._recorder.paths, self._recorder.checkpoints.latest_name
        sign, cause = self._plan.tuner_sign, error
        # Half of the time is for the submission.
        wait_s = 0.0 if sign is None else min(timeouts.TUNER_SIGN_S, patience_s / 2)
        if sign is None or not shows_life(Path(sign), patience_s=wait_s):
            try:
                successor = submit_successor(
                    paths, patience_s=patience_s - wait_s, why=why, checkpoint=checkpoint
                )
            except LaunchError as refusal:
                if sign is None or find_submit_limit(str(refusal)) is None:
                    raise
                cause = refusal
            else:
                self._run_record.name_successor(successor)
                return
        leave_to_tuner(paths, why=why, checkpoint=checkpoint, patience_s=patience_s)
        raise RunStoppedError(
            f"the run stopped because {why}. The tuner of its sweep continues it in another job."
        ) from cause

    def _requeue(self, job: Job, *, why: str, patience_s: float) -> LaunchError | None:
        """Let Slurm queue the job again; return why it did not."""
        try:
            requeue(job.own_id, patience_s=patience_s)
        except LaunchError as refusal:
            now = self._read_job()
            if now is None or now.restarts == job.restarts:
                self._run_record.note("requeue-refused", job_id=job.job_id, error=str(refusal))
                return refusal
        self._note_requeued(job, why=why)
        return None

    def _note_requeued(self, job: Job, *, why: str) -> None:
        checkpoint = self._recorder.checkpoints.latest_name
        self._run_record.note("requeued", job_id=job.job_id, why=why, checkpoint=checkpoint)

    def _stop_for_total_time(self) -> None:
        why = f"its total_time={self._run_config.total_time!r} is used up"
        self._recorder.request_stop(StopNotice(kind=StopKind.TOTAL_TIME, why=why))

    def _read_job(self) -> Job | None:
        """Return what Slurm reports of this job; None where there is no job, or no answer."""
        if not self._plan.in_job:
            return None
        try:
            return read_own_job(patience_s=timeouts.CONTROLLER_S)
        except LaunchError as error:
            log(str(error))
            return None


def _warning_that_killed(error: BaseException) -> str | None:
    """Return the warning of Slurm that has ended what was being started; None if none has."""
    found = _KILLED_BY_WARNING.search(str(error)) if isinstance(error, LaunchError) else None
    return None if found is None else f"SIGUSR{found[0][-1]}"
