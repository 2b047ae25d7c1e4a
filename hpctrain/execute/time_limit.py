"""`TimeLimit`: the end of a job, where no warning of Slurm comes before it."""

from __future__ import annotations

import time
from collections.abc import Callable

from hpctrain import environ, timeouts
from hpctrain.errors import LaunchError
from hpctrain.execute.question import Question
from hpctrain.execute.stop_decision import StopKind, StopNotice
from hpctrain.log import log
from hpctrain.slurm.job import read_own_job

# A controller that many jobs ask at once gets rest; it may be away for a night.
_FIRST_PAUSE_S, _LAST_PAUSE_S = 5.0, 600.0


class TimeLimit:
    """Notices that the time limit of this process's job is about to end.

    A job script may ask Slurm for no warning, or for a signal that hpctrain does not handle;
    and a warning may come before there is a step that it could reach.

    Parameters
    ----------
    notice_s
        Seconds before the end at which it is noticed; a quarter of the time that is left at the
        beginning, if that is less.
    clock
        Returns the time, in seconds.
    """

    def __init__(self, *, notice_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._notice_s = notice_s
        self._clock = clock
        self._end: float | None = None
        self._question: Question[float | None] | None = None
        self._check: Question[float | None] | None = None
        self._pause_s = _FIRST_PAUSE_S
        self._ask_at: float | None = None

    @property
    def end(self) -> float | None:
        """When the job ends, in seconds since the epoch; None if that is not known."""
        return self._end

    def begin(self) -> None:
        """Begin to find out when the job ends; does not wait for Slurm. Not collective."""
        # Slurm 23.02 and newer.
        given = environ.variable("SLURM_JOB_END_TIME")
        if given is not None and given.isdigit():
            self._take(float(given))
        else:
            self._question = _begin_question()

    def step(self) -> StopNotice | None:
        """Return that the run is to stop, once, when it is time; never waits. Not collective."""
        self._look_for_answer()
        if not self._is_due():
            return None
        # An administrator may have moved it.
        if self._check is None:
            self._check = _begin_question()
        if self._check.is_open:
            return None
        check, self._check = self._check, None
        if check.error is None:
            self._end = check.answer
            if not self._is_due():
                return None
        else:
            log(f"whether the time limit of this job was moved is not known: {check.error}")
        end, self._end = self._end, None
        why = f"the time limit of job {environ.variable('SLURM_JOB_ID')} ends"
        return StopNotice(kind=StopKind.TIME_LIMIT, why=why, deadline=end)

    def _is_due(self) -> bool:
        return self._end is not None and time.time() >= self._end - self._notice_s

    def _look_for_answer(self) -> None:
        """Take the answer to the first question; ask again, less and less often, without one."""
        if self._ask_at is not None and self._clock() >= self._ask_at:
            self._ask_at, self._question = None, _begin_question()
        if self._question is None or self._question.is_open:
            return
        question, self._question = self._question, None
        if question.error is None:
            self._take(question.answer)
            return
        if self._pause_s == _FIRST_PAUSE_S:
            log(f"when the time limit of this job ends is not known yet: {question.error}")
        self._ask_at = self._clock() + self._pause_s
        self._pause_s = min(2 * self._pause_s, _LAST_PAUSE_S)

    def _take(self, end: float | None) -> None:
        self._end = end
        if end is not None:
            self._notice_s = min(self._notice_s, max(0.0, end - time.time()) / 4)


def _begin_question() -> Question[float | None]:
    return Question(_ask_end, name="hpctrain-time-limit")


def _ask_end() -> float | None:
    """Return when the job of this process ends; None if it has no limit."""
    job = read_own_job(patience_s=timeouts.TIME_LIMIT_QUESTION_S)
    if job is not None and job.end_time is None and not job.is_unlimited:
        raise LaunchError(f"Slurm does not say when job {job.job_id} ends.")
    return None if job is None else job.end_time
