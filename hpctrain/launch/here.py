"""Run the executor in this process: on a laptop, and inside an allocation."""

from __future__ import annotations

import os
from contextlib import nullcontext

from hpctrain.errors import RunStoppedError
from hpctrain.execute.executor import Executor
from hpctrain.execute.rank_forks import RankForks
from hpctrain.launch.follow import Follower
from hpctrain.launch.interrupt import explain_interrupt
from hpctrain.launch.job_signals import warnings_of_slurm
from hpctrain.launch.request import Submission
from hpctrain.log import log
from hpctrain.plan.resources import Placement
from hpctrain.rundir.display import counted
from hpctrain.rundir.trust import digest_spec


def run_here(submission: Submission, fork_server: RankForks | None) -> None:
    """Run the run to its end in this process, and show how it goes.

    Not collective. The ranks are started with mpiexec on this machine, or with srun (or the site's
    mpiexec) on the nodes of the allocation.

    Parameters
    ----------
    fork_server
        What forks ranks; it ends with the run.
    """
    request = submission.request
    executor = Executor(
        paths=request.paths,
        plan=submission.plan,
        run_config=request.run_config,
        resume_from=request.resume_from,
        spec_digest=digest_spec(submission.spec_content),
        fork_server=fork_server,
    )
    verbose = request.run_config.verbose
    if submission.plan.launcher == "local" and verbose:
        _warn_of_few_cpus(submission.plan.placement)
    follower = Follower(request.paths, verbose=verbose) if verbose else None
    try:
        with (
            warnings_of_slurm(executor.signals.append) if submission.plan.in_job else nullcontext(),
            follower.in_background() if follower else nullcontext(),
        ):
            ended = executor.run()
    except KeyboardInterrupt as error:
        explain_interrupt(error, submission, executor.recorder.checkpoint_path())
        raise
    if not ended:
        raise RunStoppedError(
            f"the job of run {request.run_config.name} was taken away and waits in Slurm's queue "
            f"again; its script then resumes the run from "
            f"{executor.recorder.checkpoint_path() or 'its beginning'}."
        )


def _warn_of_few_cpus(placement: Placement) -> None:
    available = len(os.sched_getaffinity(0))
    workers, cpus = placement.num_workers, placement.cpus_per_task
    if workers * cpus > available:
        fits = available // cpus
        way_out = f" num_workers={fits} is what fits." if fits else ""
        log(
            f"warning: {workers} workers with {counted(cpus, 'CPU')} each share the "
            f"{counted(available, 'CPU')} of this machine, and slow each other down."
            f"{way_out}"
        )
