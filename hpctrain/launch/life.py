"""`LifeTest`: whether an executor is at work on a run. The clocks of two hosts are not compared."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from hpctrain import environ, timeouts
from hpctrain.errors import DamagedFileError, LaunchError
from hpctrain.execute.fence import read_owner
from hpctrain.execute.process import process_start_time
from hpctrain.log import log
from hpctrain.own_time import OwnTime
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.plan import read_plan
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus, read_status

_SHORTEST_SILENCE_S = 12.0
"""An executor writes its status every six seconds at least."""
_LONGEST_SILENCE_S = 600.0
LOOK_INTERVAL_S = 0.5
LONGEST_GAP_S = 5.0
QUIET_S = 3.0


class LifeTest:
    """Finds out whether an executor is, or will be, at work on a run, in one look or several.

    Slurm's answer counts, and on this host a process with its start time. Of an executor elsewhere,
    it is seen whether the status changes, in seconds of this process's own clock.

    Parameters
    ----------
    paths
        The run directory.
    job_is_alive
        Whether a job waits or runs according to Slurm; None if it does not know the job.
    silence_s
        Seconds without a change that mean death; None is twice the run's ``node_timeout_s``.
    """

    def __init__(
        self,
        paths: RunPaths,
        job_is_alive: Callable[[str], bool | None],
        *,
        silence_s: float | None = None,
    ) -> None:
        self._paths = paths
        self._job_is_alive = job_is_alive
        self._given_s = silence_s
        self._seen: object = None
        self._own = OwnTime(0.0)
        self._silence_s: float = timeouts.EXECUTOR_SILENCE_S
        self._has_changed = False

    @property
    def is_watching(self) -> bool:
        """Whether only a change shows it."""
        return self._seen is not None

    def look(self, status: RunStatus) -> bool | None:
        """Return whether an executor is at work; None if only a later look shows it.

        Not collective. After a change, it counts as alive until it is silent for too long.

        Parameters
        ----------
        status
            As it was just read.
        """
        verdict = self._look_here(status)
        return self._look_for_change(status) if verdict is None else verdict

    def watch(self, *, timeout_s: float | None = None) -> bool | None:
        """Return whether an executor is at work; look again until that is known. Not collective.

        Parameters
        ----------
        timeout_s
            Seconds after which None is returned; None is without a bound of its own.
        """
        begun = time.monotonic()
        has_said = False
        while True:
            status = read_status(self._paths)
            if status is None:
                return False
            verdict = self.look(status)
            if verdict is not None:
                return verdict
            waited_s = time.monotonic() - begun
            if timeout_s is not None and waited_s >= timeout_s:
                return None
            if timeout_s is None and not has_said and waited_s >= QUIET_S:
                has_said = True
                log(
                    f"process {status.owner_pid} on {status.owner_host or 'an unknown host'} runs "
                    f"{self._paths.root.name}, or has died. Waiting up to {self._silence_s:.0f} s "
                    f"for it to write {self._paths.status} (twice "
                    f"FailureConfig(node_timeout_s=...) of the run)."
                )
            time.sleep(LOOK_INTERVAL_S)

    def _look_here(self, status: RunStatus) -> bool | None:
        """Return what is known at once."""
        if status.state.is_final:
            return False
        if status.state is RunState.SUBMITTING:
            return True
        if status.launcher == "slurm":
            return status.job_id is not None and bool(self._job_is_alive(status.job_id))
        if status.launcher == "allocation" and status.job_id is not None:
            if status.state is RunState.SUBMITTED:
                is_own = status.job_id == environ.variable("SLURM_JOB_ID")
                return not is_own and bool(self._job_is_alive(status.job_id))
            if _was_started_again_since(status):
                return False
        host, pid, start = status.owner_host, status.owner_pid, status.owner_start
        if not host and (owner := read_owner(self._paths)):
            # Of a damaged status.
            host, pid, start = owner["host"], owner["pid"], owner["start"]
        if host == socket.gethostname():
            return process_start_time(pid) == start
        return self._look_for_job(status)

    def _look_for_job(self, status: RunStatus) -> bool | None:
        """Return False if the job that an executor runs in is over; else only a change shows it."""
        if status.job_id is None or self._seen is not None:
            return None
        try:
            return False if self._job_is_alive(status.job_id) is False else None
        except LaunchError:
            return None

    def _look_for_change(self, status: RunStatus) -> bool | None:
        now = time.monotonic()
        if status.mark != self._seen:
            self._has_changed = self._seen is not None
            if self._seen is None:
                self._silence_s = self._find_silence_s()
            self._seen, self._own = status.mark, OwnTime(now, longest_gap_s=LONGEST_GAP_S)
        if self._own.look(now) >= self._silence_s:
            return False
        return True if self._has_changed else None

    def _find_silence_s(self) -> float:
        if self._given_s is not None:
            return self._given_s
        try:
            config = read_plan(self._paths)["run_config"]["failure_config"]
            silence_s = 2 * float(config["node_timeout_s"])
            return min(max(_SHORTEST_SILENCE_S, silence_s), _LONGEST_SILENCE_S)
        except (OSError, DamagedFileError, KeyError, TypeError, ValueError):
            return timeouts.EXECUTOR_SILENCE_S


def job_is_alive(job_id: str) -> bool | None:
    """Return whether a job of Slurm waits or runs; None if Slurm does not know it.

    Not collective.

    Raises
    ------
    LaunchError
        If the controller does not answer.
    """
    from hpctrain.slurm.job import find_job

    job = find_job(job_id)
    return None if job is None else not job.is_final


def _was_started_again_since(status: RunStatus) -> bool:
    """Return whether this process is in the job of a run, which Slurm has started anew."""
    return (
        status.job_id == environ.variable("SLURM_JOB_ID")
        and environ.restart_count() > status.restarts
    )
