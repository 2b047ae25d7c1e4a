"""`JobEnd`: notices that the job of a sweep is about to end, so that its trials stop before."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

from hpctrain import environ
from hpctrain.execute.time_limit import TimeLimit
from hpctrain.launch.job_signals import warnings_of_slurm
from hpctrain.slurm_config import SlurmConfig
from hpctrain.tune.stops import StopTimes

_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class JobEnd:
    """The end of the job that this process is in, by its time limit or a signal."""

    def __init__(self) -> None:
        self._signals: list[str] = []
        self._time_limit: TimeLimit | None = None
        self._deadline: float | None = None

    def why(self) -> str:
        """Return why the job ends soon; empty as long as it does not. Not collective."""
        if self._signals:
            return f"job {environ.variable('SLURM_JOB_ID')} got {self._signals[0]}"
        notice = None if self._time_limit is None else self._time_limit.step()
        if notice is None:
            return ""
        self._deadline = notice.deadline
        return notice.why

    def stop_times(self, patience_s: float) -> StopTimes:
        """Return how long trials are waited for that are asked to stop now. Not collective.

        Parameters
        ----------
        patience_s
            Seconds that they have where the job does not end before.
        """
        limit = None if self._time_limit is None else self._time_limit.end
        end = limit or self._deadline
        return StopTimes.of(patience_s, math.inf if end is None else end - time.time())

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Notice the end for the time of the block. Not collective."""
        if environ.variable("SLURM_JOB_ID") is None:
            yield
            return
        # As that of a run that a person's own job script starts.
        self._time_limit = TimeLimit(notice_s=SlurmConfig().notice_s)
        self._time_limit.begin()
        with warnings_of_slurm(self._signals.append, signals=_SIGNALS):
            yield
