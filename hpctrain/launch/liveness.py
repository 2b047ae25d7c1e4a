"""Notice, as a follower, that nobody runs the run any more."""

from __future__ import annotations

import time
from pathlib import Path

from hpctrain.errors import LaunchError, RunStoppedError
from hpctrain.launch.existing import is_live
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.status import RunState, RunStatus, read_status
from hpctrain.slurm.job import explain_end, find_job
from hpctrain.slurm.output import Job

# Many people ask on a login node, and sites throttle those who ask every second: begin quickly,
# since most things that go wrong do so at once, and then slow down.
_FIRST_INTERVAL_S = 2.0
_LAST_INTERVAL_S = 30.0
_BACKOFF = 1.3


class Liveness:
    """Asks whether a run still has somebody who runs it, ever more seldom.

    Parameters
    ----------
    paths
        The run directory.
    """

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths
        self._interval = _FIRST_INTERVAL_S
        self._next = time.monotonic() + self._interval

    def check(self, status: RunStatus) -> None:
        """Raise if nobody runs the run any more. Not collective.

        Raises
        ------
        LaunchError
            If its job ended before the executor began.
        RunStoppedError
            If its executor is gone.
        """
        if time.monotonic() < self._next:
            return
        self._interval = min(self._interval * _BACKOFF, _LAST_INTERVAL_S)
        self._next = time.monotonic() + self._interval
        if status.launcher != "slurm":
            if not is_live(status, lambda _: False):
                self._raise_gone(status, f"process {status.owner_pid} on {status.owner_host}")
            return
        assert status.job_id is not None
        try:
            job = find_job(status.job_id)
        except LaunchError as error:
            if error.transient:
                return
            raise
        if job is None or job.is_final:
            self._raise_ended(status, job)

    def _raise_ended(self, status: RunStatus, job: Job | None) -> None:
        # The executor writes its last word before the job ends, so look once more.
        latest = read_status(self._paths)
        if latest is not None and (latest.state.is_final or latest.job_id != status.job_id):
            return
        if job is not None and status.state is RunState.SUBMITTED and not status.attempt:
            log = self._paths.job_log(job.job_id)
            raise LaunchError(
                explain_end(
                    job, storage=str(self._paths.root), log_path=str(log), log=_last_lines(log)
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


def _last_lines(log: Path) -> str:
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-12:])
    except FileNotFoundError:
        return ""
