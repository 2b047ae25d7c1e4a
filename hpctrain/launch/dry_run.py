"""Print what would be run, and on what."""

from __future__ import annotations

import os
import shlex
import sys

from hpctrain import environ
from hpctrain.execute.step_launcher import find_mpiexec
from hpctrain.launch.request import Submission
from hpctrain.launch.storage import check_storage
from hpctrain.pack.header import SQUASHFS
from hpctrain.plan.argv import agent_step_argv, host_agents_argv, worker_step_argv
from hpctrain.plan.container import GpuVendor, enter_container
from hpctrain.plan.environment_pack import unpacked_at
from hpctrain.plan.launch_plan import LaunchPlan, StepLauncher
from hpctrain.plan.layout import describe_counts
from hpctrain.plan.process_argv import agent_argv, worker_argv
from hpctrain.plan.sbatch import option_words
from hpctrain.rundir.display import counted


def render_plan(submission: Submission) -> str:
    """Return the translation of a request, as text. Not collective.

    Words in capitals are known only where the job runs.
    """
    plan, paths = submission.plan, submission.request.paths
    cwd = submission.spec.settings.cwd
    placement = plan.placement
    lines = [
        f"run        {paths.root}",
        f"launcher   {plan.launcher}",
        f"site       {submission.site.name}",
        f"ranks      {placement.num_workers} = {counted(placement.num_nodes, 'node')} "
        + (
            f"x {placement.max_tasks_per_node}"
            if placement.is_even
            else f"with {describe_counts(placement.tasks_per_node)}"
        ),
        f"per rank   {counted(placement.cpus_per_task, 'CPU')}, "
        f"{counted(placement.gpus_per_task, 'GPU')}, "
        + (
            f"{placement.mem_bytes_per_task / 2**30:.3g} GiB"
            if placement.mem_bytes_per_task is not None
            else "memory as the site gives it"
        ),
    ]
    nodes = plan.job_nodes
    if plan.in_job and nodes.survives_loss:
        lines.append(f"nodes      {nodes}; goes on with {nodes.enough} when others are lost")
    if plan.container is not None:
        lines.append(f"container  {plan.container.image} ({plan.container.runtime})")
    python = sys.executable
    if plan.environment_pack is not None:
        pack = plan.environment_pack
        done = "mounted" if pack.form == SQUASHFS else "unpacked"
        lines.append(f"packed     {pack.path}, {done} in {pack.directory} of each node")
        unpacked = unpacked_at(pack, place=pack.directory, user=os.geteuid(), run="RUN")
        python = f"{unpacked}/{pack.interpreter}"
    lines += [f"variable   {name}={value}" for name, value in plan.environment.items()]
    if plan.launcher == "slurm":
        from hpctrain.slurm.submit import make_batch_script

        lines += [""]
        if plan.first_job_directives:
            options = shlex.join(option_words(plan.first_job_directives))
            lines += [f"# the first job is submitted with {options}"]
        lines += [make_batch_script(plan, paths, cwd=cwd)]
    launcher = _launcher(plan)
    if plan.has_agents:
        step = _agent_step(plan, launcher, python, cwd=cwd)
        lines += ["", "# on each node, for each attempt:", shlex.join(step)]
    if plan.launcher != "inline":
        step = _rank_step(submission, launcher, python)
        lines += ["", "# the ranks, for each attempt:", shlex.join(step)]
    return "\n".join(lines)


def print_plan(submission: Submission) -> None:
    """Print the translation of a request. Not collective.

    Raises
    ------
    ConfigError
        If its run directory could not be made.
    """
    check_storage(submission.request.paths)
    print(render_plan(submission), flush=True)


def _agent_step(plan: LaunchPlan, launcher: StepLauncher, python: str, *, cwd: str) -> list[str]:
    nodes = plan.job_nodes
    hosts = plan.placement.nodes if plan.launcher == "mpiexec" else ()
    agent = agent_argv(
        python,
        cwd=cwd,
        attempt=1,
        socket="SOCKET",
        secret="SECRET_FILE",
        addresses=["ADDRESS"],
        hosts=hosts,
        in_tree=nodes.most > environ.hub_fanout(),
    )
    if hosts:
        return host_agents_argv(launcher, hosts, agent, export=())
    return agent_step_argv(
        plan.placement, agent, survives_loss=nodes.survives_loss, is_slice=plan.is_slice
    )


def _rank_step(submission: Submission, launcher: StepLauncher, python: str) -> list[str]:
    plan, container = submission.plan, submission.plan.container
    placement = plan.placement
    command = worker_argv(
        python if container is None else container.python,
        run_dir=str(submission.request.paths.root),
        attempt=1,
        world_size=placement.num_workers,
        socket="SOCKET",
        log_to_file=submission.request.run_config.log_to_file,
    )
    srun_args = plan.srun_args
    if container is not None:
        # Whose GPUs they are, the devices of a compute node show.
        gpus: GpuVendor = "unknown" if placement.gpus_per_task else ""
        cwd, variables = submission.spec.settings.cwd, [*plan.environment]
        entry = enter_container(container, command, cwd=cwd, gpus=gpus, variables=variables)
        command, srun_args = [*entry.argv], (*entry.srun_options, *srun_args)
    return worker_step_argv(
        launcher,
        placement,
        command,
        srun_args=srun_args,
        local=not plan.has_agents,
        is_slice=plan.is_slice,
    )


def _launcher(plan: LaunchPlan) -> StepLauncher:
    if plan.launcher == "mpiexec":
        # It will be this very one.
        return find_mpiexec(plan.mpi)
    if "/" in plan.mpi:
        return StepLauncher(program=plan.mpi, kind="hydra")
    if plan.in_job and plan.mpi != "wheel":
        pmi = "PROBED" if plan.mpi == "auto" else plan.mpi
        return StepLauncher(program="srun", kind="srun", pmi=pmi)
    return StepLauncher(program="mpiexec", kind="hydra")
