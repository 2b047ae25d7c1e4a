"""What became of a submission whose process was killed, or whose answer was lost."""

from __future__ import annotations

from contextlib import suppress

from hpctrain.errors import LaunchError
from hpctrain.launch.claim import is_claimed
from hpctrain.rundir.ledger import read_events
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.run_record import RunRecord
from hpctrain.rundir.states import RunEvent, RunState
from hpctrain.rundir.status import RunStatus, read_status


def read_settled_status(paths: RunPaths, *, believe_claim: bool = True) -> RunStatus | None:
    """Return the status of a run. One that no process submits any more is submitted, or stopped.

    Not collective. Slurm is asked only where the process that submitted the run is gone; what it
    answers is written into the run directory. None: the run is being written down just now.

    Parameters
    ----------
    believe_claim
        Whether a process that holds the claim on the run is at it.

    Raises
    ------
    LaunchError
        If Slurm is asked, and does not answer.
    """
    status = read_status(paths)
    if status is not None and status.state is not RunState.SUBMITTING:
        return status
    if believe_claim and is_claimed(paths):
        return status
    # The process that held the claim has written the status before it released it.
    again = read_status(paths)
    if again != status:
        return again
    if status is None:
        # The process was killed, or the disk full, at the very beginning.
        status = RunStatus(name=paths.root.name, state=RunState.SUBMITTING, launcher="slurm")
        if not paths.batch_script.exists():
            return _interrupted(status.with_changes(launcher=""))
    job_id = find_unrecorded_job(paths)
    if job_id is None:
        settled = _interrupted(status)
        with suppress(OSError):
            RunRecord(paths).write(settled)
        return settled
    with suppress(OSError):
        # It may be a colleague's run, or the disk full.
        record_job(paths, status, job_id, recovered=True)
    return _submitted(status, job_id)


def find_unrecorded_job(paths: RunPaths) -> str | None:
    """Return the id of a job of the run that waits or runs and that the ledger does not know.

    Not collective.

    Raises
    ------
    LaunchError
        If Slurm does not answer.
    """
    from hpctrain.slurm.job import find_jobs_of_script

    if not paths.batch_script.exists():
        return None
    known = {event.get("job_id") for event in read_events(paths)}
    jobs = find_jobs_of_script(paths.batch_script)
    return next((job.job_id for job in jobs if job.job_id not in known), None)


def record_job(paths: RunPaths, status: RunStatus, job_id: str, **details: object) -> None:
    """Write down which job a run was submitted as, unless that has begun already.

    Not collective.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    # A quick cluster begins before sbatch has returned here: the executor's status then stands.
    present = read_status(paths)
    if present is None or present.job_id != job_id:
        RunRecord(paths).write(_submitted(status, job_id))
    RunRecord(paths).append("submitted", job_id=job_id, **details)


def record_refusal(paths: RunPaths, status: RunStatus, error: LaunchError) -> None:
    """Write down that Slurm refused the job of a run, and its words. Not collective.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    message = str(error)
    RunRecord(paths).write(
        status.after(RunEvent.REFUSED, error=message, error_type=type(error).__name__)
    )
    RunRecord(paths).append("refused", error=message)


def _submitted(status: RunStatus, job_id: str) -> RunStatus:
    return status.after(RunEvent.SUBMITTED, job_id=job_id)


def _interrupted(status: RunStatus) -> RunStatus:
    return status.after(
        RunEvent.STOPPED,
        error="fit() ended before the run was submitted or begun; the same command begins it.",
        error_type="RunStoppedError",
    )
