"""Notice, as a follower, that no process runs the run any more, or why none does yet."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from hpctrain import timeouts
from hpctrain.errors import LaunchError, RunStoppedError
from hpctrain.launch.claim import Claim, find_claim
from hpctrain.launch.life import LifeTest, job_is_alive
from hpctrain.launch.settle import read_settled_status
from hpctrain.own_time import OwnTime
from hpctrain.rundir.directory import HeldDirectory
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.reading import read_end
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus, read_status
from hpctrain.slurm.job import explain_end, find_job
from hpctrain.slurm.output import Job
from hpctrain.slurm.waiting import explain_wait

# Many people ask on a login node, and sites throttle those who ask often: two questions in the
# first minute, since most things that go wrong do so at once, and one a minute after it.
_FIRST_QUESTION_S = 5.0
_SECOND_QUESTION_S = 30.0
_MINUTE_S = 60.0
_MOST_SAVED = 2.0
# Executors write their status every two seconds, and at least every six in a wait.
_SILENCE_S = 15.0
# An executor writes its status a second after the batch script has begun.
_LOG_QUIET_S = 3.0
# Of a process on this machine, or of files; Slurm is not asked.
_FIRST_LOOK_S = 2.0
_LAST_LOOK_S = 30.0
_BACKOFF = 1.3
_LOG_BYTES = 64 * 1024


class QuestionBudget:
    """How many questions Slurm may still be asked: two, and one more for each minute.

    Parameters
    ----------
    now
        Seconds of a monotonic clock.
    """

    def __init__(self, now: float) -> None:
        self._left = _MOST_SAVED
        self._at = now

    def take(self, now: float) -> bool:
        """Return whether a question may be asked now; it counts as asked then."""
        self._left = min(self._left + (now - self._at) / _MINUTE_S, _MOST_SAVED)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class Liveness:
    """Finds out whether a process still runs a run, from files as far as possible.

    Slurm is asked where the executor is silent, or has not begun.

    Parameters
    ----------
    paths
        The run directory.
    """

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths
        self._directory = HeldDirectory(paths)
        now = time.monotonic()
        self._look_interval = _FIRST_LOOK_S
        self._next_look = now + _FIRST_LOOK_S
        self._budget = QuestionBudget(now)
        self._next_question = now + _FIRST_QUESTION_S
        self._second_at = now + _SECOND_QUESTION_S
        self._clue: Any = None
        self._clue_at = now
        self._asked_about: Any = None
        self._settled: RunStatus | None = None
        self._life = LifeTest(paths, self._ask_of_job)
        self._claim: Claim | None = None
        self._claimed = OwnTime(now)
        self.waits = ""
        """Why the job of the run waits, and what to do; empty if it does not."""

    def check(self, status: RunStatus) -> None:
        """Raise if no process runs the run any more. Not collective.

        Raises
        ------
        LaunchError
            If its job ended before the executor began.
        RunStoppedError
            If its executor is gone.
        """
        now = time.monotonic()
        if status.state is RunState.SUBMITTING:
            self._look_for_submission(now)
            if self._settled is None:
                return
            status = self._settled
        if status.launcher != "slurm":
            self._look_for_process(status, now)
            return
        if not self._has_question(status, now):
            return
        self._directory.check()
        assert status.job_id is not None
        try:
            job = find_job(status.job_id)
        except LaunchError as error:
            if error.transient:
                return
            raise
        if job is None or job.is_final:
            self._raise_ended(status, job)
        self.waits = "" if job is None else explain_wait(job, run=str(self._paths.root))

    def _has_question(self, status: RunStatus, now: float) -> bool:
        """Return whether Slurm is to be asked now."""
        clue, quiet_s = self._look_for_clue(status)
        if clue != self._clue:
            # Clocks of two hosts may differ: this decides only whether Slurm is asked at once.
            is_old = self._clue is None and time.time() - status.updated_at > _SILENCE_S
            self._clue, self._clue_at = clue, now - (quiet_s if is_old else 0.0)
        is_quiet = now - self._clue_at >= quiet_s
        if status.state is not RunState.SUBMITTED and not is_quiet:
            # An executor is at work.
            self.waits = ""
            return False
        is_new = is_quiet and clue != self._asked_about
        if not (is_new or now >= self._next_question) or not self._budget.take(now):
            return False
        self._asked_about = clue
        self._next_question = now + _MINUTE_S if now >= self._second_at else self._second_at
        return True

    def _look_for_clue(self, status: RunStatus) -> tuple[Any, float]:
        """Return what changes as long as all is well, and how long it may stay as it is."""
        if status.state is not RunState.SUBMITTED:
            return status.updated_at, _SILENCE_S
        # With the first byte of the log the job has begun, and its executor is about to speak.
        assert status.job_id is not None
        try:
            size = self._paths.job_log(status.job_id).stat().st_size
        except FileNotFoundError:
            return (status.updated_at, None), _MINUTE_S
        return (status.updated_at, size), _LOG_QUIET_S

    def _is_time_to_look(self, now: float) -> bool:
        if now < self._next_look:
            return False
        self._look_interval = min(self._look_interval * _BACKOFF, _LAST_LOOK_S)
        self._next_look = now + self._look_interval
        return True

    def _look_for_submission(self, now: float) -> None:
        """See whether a process still submits the run, and if not, what became of that."""
        if self._settled is not None or not self._is_time_to_look(now):
            return
        self._directory.check()
        if self._is_claimed(now) or not self._budget.take(now):
            return
        try:
            settled = read_settled_status(self._paths, believe_claim=False)
        except LaunchError as error:
            if error.transient:
                return
            raise
        if settled is None or settled.state is RunState.SUBMITTING:
            return
        if settled.state is RunState.STOPPED:
            # On a disk that is full no other process can write so.
            raise RunStoppedError(settled.error)
        self._settled = settled

    def _is_claimed(self, now: float) -> bool:
        """Return whether a process submits the run; one of another host is believed for a while."""
        claim = find_claim(self._paths)
        if claim != self._claim:
            self._claim = claim
            self._claimed = OwnTime(now, longest_gap_s=_LAST_LOOK_S)
        if claim is None:
            return False
        return claim.is_here or self._claimed.look(now) < timeouts.CLAIM_S

    def _look_for_process(self, status: RunStatus, now: float) -> None:
        if self._is_time_to_look(now):
            self._directory.check()
        try:
            is_gone = self._life.look(status) is False
        except LaunchError:
            return
        if is_gone:
            self._directory.check()
            self._raise_gone(status, f"process {status.owner_pid} on {status.owner_host}")

    def _ask_of_job(self, job_id: str) -> bool | None:
        if not self._budget.take(time.monotonic()):
            raise LaunchError("Slurm was asked a moment ago.", transient=True)
        return job_is_alive(job_id)

    def check_directory(self) -> None:
        """Raise if the run directory is gone, or no process begins the run. Not collective.

        For a run that has no status yet.

        Raises
        ------
        RunStoppedError
            If the directory is gone, or no process begins the run.
        """
        self._directory.check()
        self._look_for_submission(time.monotonic())

    def _raise_ended(self, status: RunStatus, job: Job | None) -> None:
        # The executor writes its last status before the job ends, so look once more.
        latest = read_status(self._paths)
        if latest is not None and (latest.state.is_final or latest.job_id != status.job_id):
            return
        if job is not None and status.state is RunState.SUBMITTED and not status.attempt:
            log = self._paths.job_log(job.job_id)
            raise LaunchError(
                explain_end(
                    job, storage=str(self._paths.root), log_path=str(log), log=last_lines(log)
                )
            )
        what = f"job {status.job_id}" + (f" ({job.state})" if job else "")
        self._raise_gone(status, what)

    def _raise_gone(self, status: RunStatus, what: str) -> None:
        latest = read_status(self._paths)
        if latest is not None and latest.state.is_final:
            return
        raise RunStoppedError(
            f"{what}, which ran {status.name}, is gone, and the run is not finished (attempt "
            f"{status.attempt}, report {status.reports}). fit() with the same name resumes it from "
            f"checkpoint {status.checkpoint or 'none: from its beginning'}."
        )


def last_lines(log: Path) -> str:
    """Return the end of a log; empty if it cannot be read. Not collective."""
    try:
        end = read_end(log, _LOG_BYTES).decode(errors="replace")
        return "\n".join(end.splitlines()[-12:])
    except OSError:
        return ""
