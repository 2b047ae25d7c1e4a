"""`JobsRunner`: each trial is a run of its own with a Slurm job of its own."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from hpctrain.errors import ConfigError, HpctrainError, LaunchError
from hpctrain.execute.tuner_sign import LEFT_TO_TUNER
from hpctrain.launch.cancel import cancel_run, record_end, request_stop
from hpctrain.launch.fit import submit_prepared
from hpctrain.launch.life import LifeTest
from hpctrain.launch.live_watch import JobBoard
from hpctrain.launch.liveness import last_lines
from hpctrain.launch.pace import Pace
from hpctrain.launch.request import Submission
from hpctrain.launch.settle import read_settled_status
from hpctrain.log import log
from hpctrain.own_time import ANY_GAP_S, Deadline
from hpctrain.rundir.ledger import newest_attempt, read_events
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus, read_status
from hpctrain.slurm.client import find_submit_limit
from hpctrain.slurm.job import Queue, explain_end, find_job, has_seen_nothing
from hpctrain.slurm.output import Job
from hpctrain.tune.job_life import JobLife
from hpctrain.tune.job_slots import JobSlots
from hpctrain.tune.ledger import SweepPaths
from hpctrain.tune.local_runner import LocalRunner, MakeTrainer, RunOf
from hpctrain.tune.runner import End, Look, NotNowError
from hpctrain.tune.trial import Trial
from hpctrain.tune.watch import Watch

_CANCELLED = "CANCELLED"
# Its node is cleaned up; it counts for no limit any more.
_COMPLETING = "COMPLETING"
_UNREADABLE_S = 2.0


class JobsRunner(LocalRunner):
    """Runs trials as jobs of Slurm, which go on whatever becomes of this process.

    A job a trial, and no array: each is a run like any other, with its own requeues. What follows a
    job that may not be requeued is submitted here, where jobs are counted, or by the run itself if
    this process is gone. Trials are followed by their files. Slurm is asked as seldom as by one who
    follows a single run.

    Parameters
    ----------
    make_trainer, run_of
        As in `LocalRunner`.
    decides
        Makes no difference: trials on other hosts go on while their reports are looked at.
    """

    launcher = "slurm"

    def __init__(self, make_trainer: MakeTrainer, run_of: RunOf, *, decides: bool = False) -> None:
        super().__init__(make_trainer, run_of)
        self._board = JobBoard()
        self._paces: dict[str, Pace] = {}
        self._look_at: dict[str, float] = {}
        self._has_warned = False
        self._unreadable: set[str] = set()
        self._queue: Queue | None = None

    def make_slots(self, max_jobs: int) -> JobSlots:
        """Return the slots of a sweep. Not collective. Asks Slurm nothing.

        Parameters
        ----------
        max_jobs
            Jobs that wait or run at the same time.
        """
        return JobSlots(max_jobs, job_of=self._job_of, find_live=_find_live)

    def start(self, trial: Trial) -> None:
        """Submit the job of a trial, or find the one that it has. Not collective.

        Raises
        ------
        NotNowError
            If Slurm takes no more jobs now, or does not answer.
        HpctrainError
            If it refuses the job.
        """
        paths = RunPaths(self._run_of(trial.trial_id))
        try:
            super().start(trial)
        except LaunchError as error:
            if (limit := find_submit_limit(str(error))) is not None:
                raise NotNowError(f"Slurm takes no more jobs now ({limit})") from error
            if error.transient:
                raise NotNowError(_first_line(error), transient=True) from error
            status = read_status(paths)
            if status is not None and status.state is RunState.REFUSED:
                # It is refused what the configuration says.
                raise ConfigError(str(error)) from error
            raise
        self._look_at.pop(trial.trial_id, None)

    def attach(self, trial: Trial) -> bool:
        """Return whether the job of a trial waits or runs, or its run has come to an end by itself.

        Not collective. Slurm is asked once for all trials.

        Raises
        ------
        LaunchError
            If Slurm does not answer.
        """
        paths = self._watch(trial).paths
        status = read_settled_status(paths)
        if status is None or status.state is RunState.REFUSED:
            return False
        if status.state is RunState.STOPPED:
            with suppress(OSError):
                self._watch(trial).is_orphaned = bool(find_job_end(paths))
            return self._is_stopped_for_good(paths)
        if status.state.is_final or (status.job_id and self._is_alive(status.job_id)):
            return True
        after = read_status(paths)
        if after is not None and (after.state.is_final or after.job_id != status.job_id):
            # It has ended, or a successor of its job was submitted, in between.
            return self.attach(trial)
        with suppress(OSError):
            record_end(paths, f"job {status.job_id}, in which it ran, has ended")
        return False

    def look(self, trial: Trial) -> Look:
        """Return what is new of a trial. Not collective. Its files are read every few seconds."""
        now = time.monotonic()
        if now < self._look_at.get(trial.trial_id, 0.0):
            return Look()
        try:
            look = super().look(trial)
        except OSError as error:
            # NFS: a file that is replaced while it is read can be "stale" for a moment.
            self._warn_of_files(trial, error)
            self._look_at[trial.trial_id] = now + _UNREADABLE_S
            return Look()
        if (end := look.end) is not None:
            try:
                look = replace(look, end=self._explain_end(trial, end))
            except OSError as error:
                if end.was_stopped:
                    # It is found again at the next look.
                    self._warn_of_files(trial, error)
                    self._look_at[trial.trial_id] = now + _UNREADABLE_S
                    return replace(look, end=None)
        pace = self._paces.setdefault(trial.trial_id, Pace())
        self._look_at[trial.trial_id] = now + pace.next_interval(self._watch(trial).status)
        return look

    def stop(self, trial: Trial) -> None:
        """Ask the run of a trial to stop at its next report, or take its job back. Not collective.

        A job that waits is taken back: it would begin only to stop.
        """
        paths = self._watch(trial).paths
        try:
            status = read_status(paths)
            if status is None or status.state is not RunState.RUNNING:
                cancel_run(paths, now=False)
            else:
                # If its job was queued again since, it stops when that begins.
                request_stop(paths)
        except LaunchError:
            # Without an answer it is not known whether its job has begun.
            super().stop(trial)
        except (HpctrainError, OSError) as error:
            log(f"warning: cannot ask {paths.root} to stop: {error}")
        self._look_at.pop(trial.trial_id, None)

    def end(self, trials: Sequence[Trial], *, patience_s: float) -> None:
        """Cancel the jobs of some trials, all at the same time. Not collective.

        Parameters
        ----------
        patience_s
            Seconds for which their ends are waited for, all together.
        """
        deadline, cancelled = Deadline(patience_s, longest_gap_s=ANY_GAP_S), []
        for trial in trials:
            if self._cancel(trial, 0.0):
                cancelled.append(trial)
        for trial in cancelled:
            self._cancel(trial, deadline.left_s)

    def _cancel(self, trial: Trial, patience_s: float) -> bool:
        """Cancel the job of a trial; return whether Slurm was asked."""
        self._look_at.pop(trial.trial_id, None)
        try:
            cancel_run(self._watch(trial).paths, now=True, patience_s=patience_s)
        except (HpctrainError, OSError) as error:
            log(f"warning: {error}")
            return False
        return True

    def describe_left(self, trials: Sequence[Trial]) -> str:
        """Return which jobs go on when the tuner ends, and how to end them. Not collective."""
        jobs = []
        for trial in trials:
            status = self._read_status(trial.trial_id)
            # Some have ended, and were not looked at since.
            if status is not None and not status.state.is_final:
                jobs.append(f"{trial.trial_id} (job {status.job_id or 'unknown'})")
        if not jobs:
            return ""
        sweep = shlex.quote(str(self._run_of(trials[0].trial_id).parent))
        return (
            f", follows the jobs that are still there then, and submits no trial twice. Until then "
            f"these go on: {', '.join(jobs)}. See them: hpctrain tune status {sweep}   End them: "
            f"hpctrain tune stop {sweep} TRIAL"
        )

    def _warn_of_files(self, trial: Trial, error: OSError) -> None:
        if trial.trial_id not in self._unreadable:
            self._unreadable.add(trial.trial_id)
            log(
                f"warning: the files of {trial.trial_id} cannot be read now, and are read again "
                f"later: {error.strerror} ({error.filename})"
            )

    def _job_name(self, trial: Trial) -> str:
        return f"{self._run_of(trial.trial_id).parent.name}-{trial.trial_id}"

    def _tuner_sign(self, trial: Trial) -> Path:
        return SweepPaths(root=self._run_of(trial.trial_id).parent).alive

    def _explain_end(self, trial: Trial, end: End) -> End:
        """Return the end of a run with whether it is to go on in another job."""
        watch = self._watch(trial)
        if not (end.was_stopped or end.failed) or end.is_for_good:
            return end
        if watch.paths.stop_request.exists() or not (why := find_job_end(watch.paths)):
            return end
        # Also of one that was killed before it could write its last status.
        end = replace(end, failed=False, was_stopped=True, is_orphaned=True, reason=why)
        watch.is_orphaned = True
        watch.note_end(end)
        return end

    def _begin(self, trial: Trial, submission: Submission) -> None:
        if newest_attempt(submission.request.paths):
            # What the first job waited for is over.
            plan = replace(submission.plan, first_job_directives={})
            submission = replace(submission, plan=plan)
        # The limits of all trials are alike, and so would be the warnings.
        submit_prepared(submission, policy="auto", warns=not self._has_warned)
        self._has_warned = True

    def _make_life(self, paths: RunPaths) -> LifeTest:
        return JobLife(paths, self._board)

    def _explain_death(self, watch: Watch, status: RunStatus) -> End:
        """Return the end of a run whose job is over, and whose executor has not said so."""
        assert isinstance(watch.life, JobLife)
        job, has_begun = watch.life.last_job, bool(status.attempt)
        number, is_for_all = f"job {status.job_id}", False
        if job is not None and job.state.startswith(_CANCELLED):
            reason = f"{number} was cancelled" + ("" if has_begun else " before it began")
            watch.record_end(reason)
            return End(failed=False, was_stopped=True, reason=reason)
        if job is not None and not has_begun:
            log_path = watch.paths.job_log(job.job_id)
            said = last_lines(log_path)
            is_for_all = has_seen_nothing(job, log=said)
            reason = explain_end(
                job, storage=str(watch.paths.root), log_path=str(log_path), log=said
            )
        else:
            state = "" if job is None else f" ({job.state})"
            reason = (
                f"{number}{state} is over, and its executor has not written how it ended: see "
                f"{watch.paths.job_log(status.job_id or '')}"
            )
        watch.record_end(_first_line(reason))
        return End(failed=True, was_stopped=False, is_for_all=is_for_all, reason=reason)

    def _is_alive(self, job_id: str) -> bool:
        self._queue = self._queue or Queue([os.getuid()])
        job = self._queue.find_job(job_id)
        if job is None or job.is_final:
            job = find_job(job_id)
        return job is not None and not job.is_final

    def _job_of(self, trial_id: str) -> str | None:
        status = self._read_status(trial_id)
        return None if status is None else status.job_id

    def _read_status(self, trial_id: str) -> RunStatus | None:
        try:
            return read_status(RunPaths(self._run_of(trial_id)))
        except OSError:
            return None


def find_job_end(paths: RunPaths) -> str:
    """Return why the job of a run ended that was left to this sweep; empty if it was not."""
    why = ""
    for event in read_events(paths):
        if event["event"] in ("fit", "executor-started"):
            why = ""
        elif event["event"] == LEFT_TO_TUNER:
            why = str(event.get("why"))
    return why


def _find_live(job_ids: Collection[str]) -> set[str]:
    """Return those of some jobs that wait or run; all of them if Slurm does not answer."""
    queue = Queue([os.getuid()])
    try:
        return {job_id for job_id in job_ids if _occupies(queue.find_job(job_id))}
    except LaunchError:
        return set(job_ids)


def _occupies(job: Job | None) -> bool:
    return job is not None and not job.is_final and job.state != _COMPLETING


def _first_line(text: object) -> str:
    return (str(text).splitlines() or [""])[0]
