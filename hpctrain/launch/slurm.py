"""Submit a run to Slurm, and write down that it is submitted."""

from __future__ import annotations

import sys
import time
from typing import NoReturn

from hpctrain import environ
from hpctrain.launch.request import Submission
from hpctrain.log import log
from hpctrain.rundir.ledger import append_event, count_attempts
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.status import RunState, RunStatus, read_status, write_status
from hpctrain.slurm.submit import submit_executor


def submit(submission: Submission) -> None:
    """Submit the run's executor as a job.

    Not collective. Once the job id is printed this process can be killed without harm to the run.

    Raises
    ------
    LaunchError
        If Slurm refuses the job.
    """
    request, plan = submission.request, submission.plan
    paths = request.paths
    cwd = submission.spec.settings.cwd
    job_id = submit_executor(plan, paths, request.scaling_config, cwd=cwd)
    status = RunStatus(
        name=paths.root.name,
        state=RunState.SUBMITTED,
        launcher="slurm",
        attempt=count_attempts(paths),
        job_id=job_id,
        started_at=time.time(),
    ).placed_in(paths.root)
    _write_unless_begun(paths, status)
    directives = {**plan.directives, **plan.first_job_directives}
    append_event(paths, "submitted", job_id=job_id, directives=directives)
    if request.run_config.verbose and not environ.detach_requested():
        log(f"submitted {paths.root.name} as job {job_id}: {paths.root}", to=sys.stdout)


def detach(paths: RunPaths) -> NoReturn:
    """Print the job id of a run, and nothing else on stdout; end this process. Not collective."""
    status = read_status(paths)
    assert status is not None
    job = status.job_id or ""
    # `hpctrain submit` sends what the script itself prints to stderr.
    print(job, file=sys.__stdout__, flush=True)
    log(
        f"{status.name} is job {job or '(none: it runs without Slurm)'}. Follow it with: "
        f"hpctrain attach {paths.root}",
    )
    raise SystemExit(0)


def _write_unless_begun(paths: RunPaths, status: RunStatus) -> None:
    # A quick cluster begins before sbatch has returned here: the executor's word then stands.
    present = read_status(paths)
    if present is None or present.job_id != status.job_id:
        write_status(paths, status)
