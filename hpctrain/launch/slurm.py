"""Submit a run to Slurm, and write down that it is submitted, or refused."""

from __future__ import annotations

import sys
import time
from contextlib import suppress

from hpctrain import environ
from hpctrain.errors import LaunchError
from hpctrain.launch.request import Submission
from hpctrain.launch.settle import find_unrecorded_job, record_job, record_refusal
from hpctrain.log import log
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.run_record import RunRecord
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus, last_attempt
from hpctrain.rundir.trust import digest_spec
from hpctrain.slurm.submit import submit_executor


def submit_job(submission: Submission) -> None:
    """Submit the run's executor as a job.

    Not collective. Once the job id is printed this process can be killed without harm to the run.
    The caller holds the claim on the run: as long as it does, others see that this process submits
    it (`hpctrain.launch.settle`).

    Raises
    ------
    LaunchError
        If Slurm refuses the job; the run is ``refused`` then.
    """
    request, plan = submission.request, submission.plan
    paths = request.paths
    status = RunRecord(paths).write(
        RunStatus(
            name=paths.root.name,
            state=RunState.SUBMITTING,
            launcher="slurm",
            started_at=time.time(),
            **last_attempt(paths),
        ).placed_in(paths.root),
    )
    try:
        job_id = submit_executor(
            plan,
            paths,
            request.scaling_config,
            cwd=submission.spec.settings.cwd,
            spec_digest=digest_spec(submission.spec_content),
        )
    except LaunchError as error:
        job_id = _job_after_all(paths, status, error)
    try:
        directives = {**plan.directives, **plan.first_job_directives}
        record_job(paths, status, job_id, directives=directives)
    except OSError as error:
        # The job is there all the same, and readers of the status find it in Slurm's queue.
        log(f"job {job_id} is submitted, but {paths.root} cannot be written: {error.strerror}.")
    if request.run_config.verbose and not environ.detach_requested():
        log(f"submitted {paths.root.name} as job {job_id}: {paths.root}", to=sys.stdout)


def _job_after_all(paths: RunPaths, status: RunStatus, error: LaunchError) -> str:
    """Return the job that was submitted although sbatch failed; where there is none, raise.

    Raises
    ------
    LaunchError
        The refusal.
    """
    try:
        # An answer that is lost on its way ("Socket timed out") is no refusal.
        job_id = find_unrecorded_job(paths)
    except LaunchError:
        if error.transient:
            # It is not known. A reader of the status asks Slurm again.
            raise error from None
        job_id = None
    if job_id is None:
        with suppress(OSError):
            record_refusal(paths, status, error)
        raise error
    log(f"sbatch failed ({error}), but Slurm has the job.")
    return job_id
