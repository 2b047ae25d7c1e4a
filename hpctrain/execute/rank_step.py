"""Start the ranks of an attempt: their command, their environment, and what starts them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from hpctrain import environ
from hpctrain.execute.process import StepProcess
from hpctrain.execute.rank_forks import CLIENT, RankForks, client_variables
from hpctrain.execute.step_launcher import launcher_variables
from hpctrain.plan.argv import GPU_VARIABLES, MEMORY_VARIABLES, STEP_VARIABLES, worker_step_argv
from hpctrain.plan.launch_plan import StepLauncher
from hpctrain.plan.process_argv import worker_argv
from hpctrain.plan.resources import Placement
from hpctrain.rundir.paths import RunPaths
from hpctrain.worker.threads import thread_variables

if TYPE_CHECKING:
    from hpctrain.execute.node_environment import NodeEnvironment
    from hpctrain.execute.rank_container import RankContainer
    from hpctrain.execute.slot_nodes import SlotNodes


def start_ranks(
    launcher: StepLauncher,
    placement: Placement,
    *,
    paths: RunPaths,
    attempt: int,
    socket: str,
    num_threads: int,
    environment: Mapping[str, str],
    srun_args: tuple[str, ...] = (),
    log_to_file: bool = True,
    is_slice: bool = False,
    container: RankContainer | None = None,
    node_environment: NodeEnvironment | None = None,
    fork_server: RankForks | None = None,
    slot: SlotNodes | None = None,
    spare: str = "",
    local: bool = False,
    on_hosts: bool = False,
) -> StepProcess:
    """Start the ranks of an attempt. Not collective.

    Parameters
    ----------
    launcher
        What starts them.
    placement
        How they lie on nodes.
    paths
        The run directory, with a directory for the logs of the attempt.
    attempt
        Its number.
    socket
        Name of the socket to which they connect.
    num_threads
        Compute threads of each.
    environment
        Variables that they get on top of this process's own.
    srun_args, log_to_file, is_slice, container, node_environment, fork_server
        As of `hpctrain.execute.worker_group.WorkerGroup`.
    slot
        The steps in which they start, if a tuner keeps some for them.
    spare
        For ranks that are to wait, in an attempt before theirs, until their own begins: what the
        agents know them by.
    local
        Whether they stay on this machine.
    on_hosts
        Whether they are on the hosts of a hostfile.

    Raises
    ------
    LaunchError
        If the launcher cannot be started.
    """
    packed = node_environment
    python = sys.executable if packed is None else packed.python
    command = worker_argv(
        python if container is None else container.container.python,
        run_dir=str(paths.root),
        attempt=attempt,
        world_size=placement.num_workers,
        socket=socket,
        log_to_file=log_to_file,
        spare=spare,
    )
    variables = _inherited_variables(srun_args, is_slice=is_slice)
    variables.update(thread_variables(num_threads))
    variables.update(launcher_variables(launcher.kind, local=local))
    variables.update(environment)
    if packed is not None:
        variables = packed.variables(variables)
    if slot is not None:
        step = slot.start_ranks(
            command,
            placement=placement,
            environment=variables,
            log=paths.launcher_log(attempt),
        )
        if fork_server is not None:
            fork_server.note(step.reasons)
        return step
    if container is not None:
        entry = container.enter(command, launcher, environment)
        command, srun_args = [*entry.argv], (*entry.srun_options, *srun_args)
    if fork_server is not None and fork_server.tries(launcher):
        client = CLIENT if packed is None else packed.fork_client
        are_alone = placement.max_tasks_per_node == 1
        command = fork_server.command(command, variables, client=client, are_alone=are_alone)
        variables |= client_variables(command)
    return StepProcess(
        worker_step_argv(
            launcher,
            placement,
            command,
            srun_args=srun_args,
            export=environ.portable_names(variables) if on_hosts else (),
            local=local,
            is_slice=is_slice,
        ),
        environment=variables,
        log=paths.spare_log(attempt - 1) if spare else paths.launcher_log(attempt),
        job_id=None if local else environ.variable("SLURM_JOB_ID"),
    )


def _inherited_variables(srun_args: tuple[str, ...], *, is_slice: bool) -> dict[str, str]:
    """Return this process's environment without what would change the step of the ranks."""
    inherited = environ.without_export_variables(environ.environment())
    variables = environ.without_launcher_variables(inherited)
    of_job = (*GPU_VARIABLES, *MEMORY_VARIABLES) if is_slice else ()
    for option in (*STEP_VARIABLES, *of_job):
        variables.pop(option, None)
    if any(option.startswith(("--gpus-per-task", "--gres")) for option in srun_args):
        # The total of the allocation, of which the ranks may use less.
        variables.pop("SLURM_GPUS", None)
    return variables
