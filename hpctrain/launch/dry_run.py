"""Print what would be run, and on what."""

from __future__ import annotations

import sys

from hpctrain.launch.request import Submission
from hpctrain.plan.argv import worker_argv, worker_step_argv
from hpctrain.plan.launch_plan import StepLauncher
from hpctrain.plan.sbatch import directive_lines


def render_plan(submission: Submission) -> str:
    """Return the translation of a request, as text. Not collective."""
    plan, paths = submission.plan, submission.request.paths
    placement = plan.placement
    lines = [
        f"run        {paths.root}",
        f"launcher   {plan.launcher}",
        f"site       {submission.site.name}",
        f"ranks      {placement.num_workers} = {placement.num_nodes} nodes x "
        f"{placement.tasks_per_node}",
        f"per rank   {placement.cpus_per_task} CPUs, {placement.gpus_per_task} GPUs, "
        + (
            f"{placement.mem_bytes_per_task / 2**30:g} GiB"
            if placement.mem_bytes_per_task
            else "memory as the site gives it"
        ),
    ]
    in_job = plan.launcher in ("slurm", "allocation")
    if plan.launcher == "slurm":
        from hpctrain.launch.slurm import batch_setup

        lines += ["", "#!/bin/bash", *directive_lines(plan.directives, ())]
        lines += batch_setup(plan, paths)
        lines += [f"{sys.executable} -m submitit.core._submit {paths.submission}"]
        lines += ["", "# and from there, for each attempt:"]
    launcher = (
        StepLauncher(program="srun", kind="srun", pmi=plan.mpi)
        if in_job and "/" not in plan.mpi
        else StepLauncher(program="mpiexec", kind="hydra")
    )
    command = worker_argv(
        sys.executable,
        run_dir=str(paths.root),
        attempt=1,
        world_size=placement.num_workers,
        socket="SOCKET",
        log_to_file=submission.request.run_config.log_to_file,
    )
    if plan.launcher != "inline":
        step = worker_step_argv(
            launcher, placement, command, srun_args=plan.srun_args, local=not in_job
        )
        lines.append(" ".join(step))
    return "\n".join(lines)


def print_plan(submission: Submission) -> None:
    """Print the translation of a request. Not collective."""
    print(render_plan(submission), flush=True)
