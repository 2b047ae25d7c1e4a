"""`TimeLimit`: the end of a job, where no warning of Slurm comes before it."""

from __future__ import annotations

import time

from hpctrain import environ
from hpctrain.errors import LaunchError
from hpctrain.execute.failure_policy import StopKind, StopNotice
from hpctrain.log import log
from hpctrain.slurm.job import read_own_job

_PATIENCE_S = 10.0


class TimeLimit:
    """Notices that the time limit of this process's job is about to end.

    Whoever writes a job need not ask Slurm to warn, or asks for a signal that nobody waits for;
    and a warning may come before there is a step that it could reach.

    Parameters
    ----------
    notice_s
        Seconds before the end at which it is noticed; a quarter of the time that is left at the
        beginning, if that is less.
    """

    def __init__(self, *, notice_s: float) -> None:
        self._notice_s = notice_s
        self._end: float | None = None

    @property
    def end(self) -> float | None:
        """When the job ends, in seconds since the epoch; None if that is not known."""
        return self._end

    def begin(self) -> None:
        """Find out when the job ends. Not collective."""
        # Slurm 23.02 and newer.
        given = environ.variable("SLURM_JOB_END_TIME")
        self._end = float(given) if given is not None and given.isdigit() else _ask(None)
        if self._end is not None:
            self._notice_s = min(self._notice_s, max(0.0, self._end - time.time()) / 4)

    def step(self) -> StopNotice | None:
        """Return that the run is to stop, once, when it is time. Not collective."""
        if self._end is None or time.time() < self._end - self._notice_s:
            return None
        # An administrator may have moved it.
        self._end = _ask(self._end)
        if self._end is None or time.time() < self._end - self._notice_s:
            return None
        end, self._end = self._end, None
        why = f"the time limit of job {environ.variable('SLURM_JOB_ID')} ends"
        return StopNotice(kind=StopKind.TIME_LIMIT, why=why, deadline=end)


def _ask(known: float | None) -> float | None:
    """Return when the job ends; what is known where Slurm does not answer."""
    try:
        job = read_own_job(patience_s=_PATIENCE_S)
    except LaunchError as error:
        log(f"when the time limit of this job ends is not known: {error}")
        return known
    return None if job is None else job.end_time
