"""`JobLife`: whether the job of a trial waits or runs, with one question for all trials."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from hpctrain import timeouts
from hpctrain.errors import LaunchError
from hpctrain.launch.life import LifeTest, job_is_alive
from hpctrain.launch.live_watch import JobBoard
from hpctrain.launch.settle import read_settled_status
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus, read_status
from hpctrain.slurm.job import find_job
from hpctrain.slurm.output import Job

# Executors write their status every two seconds, and at least every six in a wait.
_SILENCE_S = 15.0
# On a cluster with free nodes it has begun by then.
_QUIET_IN_QUEUE_S = 5.0
_SETTLE_INTERVAL_S = 60.0


class JobLife(LifeTest):
    """Finds out whether the job of a trial waits or runs, from its files as far as possible.

    Slurm is asked of jobs that wait, and of those whose executors are silent. What says that a job
    is over is asked of Slurm again, so that a run that is queued again is not considered dead.

    Parameters
    ----------
    paths
        The run directory.
    board
        What Slurm says; all trials share it.
    late_files_s
        Seconds for which the status of a run whose job is over may still change.
    clock
        Seconds of a monotonic clock.
    """

    def __init__(
        self,
        paths: RunPaths,
        board: JobBoard,
        *,
        late_files_s: float = timeouts.LATE_FILES_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(paths, job_is_alive)
        self._run, self._board, self._clock = paths, board, clock
        self._late_files_s = late_files_s
        self._over_since: float | None = None
        self._mark: object = None
        self._changed_at = 0.0
        self._settle_at = 0.0
        self.last_job: Job | None = None
        """Its job when it was found to be over; None if Slurm has forgotten it."""

    def look(self, status: RunStatus) -> bool | None:
        """Return whether its job waits or runs; None if that is not known yet. Not collective.

        Parameters
        ----------
        status
            As it was just read.
        """
        if status.state.is_final:
            return False
        if status.state is RunState.SUBMITTING:
            return self._look_for_submission()
        job_id = status.job_id
        if job_id is None:
            return None
        self._board.register(job_id, os.getuid())
        now = self._clock()
        if status.mark != self._mark:
            self._mark, self._changed_at, self._over_since = status.mark, now, None
        is_queued = status.state is RunState.SUBMITTED
        if now - self._changed_at < (_QUIET_IN_QUEUE_S if is_queued else _SILENCE_S):
            return True
        try:
            job = self._board.find(job_id, os.getuid())
            if (job is None or job.is_final) and self._over_since is None:
                job = find_job(job_id)
        except LaunchError:
            # It is not asked yet, or does not answer.
            return None
        if job is not None and not job.is_final:
            self._over_since = None
            return True
        if self._over_since is None:
            self._over_since, self.last_job = now, job
        if self._clock() - self._over_since < self._late_files_s:
            return None
        latest = read_status(self._run)
        return False if latest is None or latest.mark == status.mark else None

    def _look_for_submission(self) -> bool | None:
        """Return False if no job came of a submission whose end could not be written down."""
        if (now := self._clock()) < self._settle_at:
            return None
        self._settle_at = now + _SETTLE_INTERVAL_S
        try:
            settled = read_settled_status(self._run)
        except LaunchError:
            return None
        return None if settled is None else not settled.state.is_final
