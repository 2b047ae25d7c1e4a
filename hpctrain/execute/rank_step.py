"""`RankStep`: the ranks of an attempt: their command, their environment, and what starts them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpctrain import environ
from hpctrain.execute.process import StepProcess
from hpctrain.execute.rank_forks import CLIENT, RankForks, client_variables
from hpctrain.execute.step_launcher import launcher_variables
from hpctrain.plan.argv import GPU_VARIABLES, MEMORY_VARIABLES, STEP_VARIABLES, worker_step_argv
from hpctrain.plan.launch_plan import LaunchPlan, StepLauncher
from hpctrain.plan.process_argv import worker_argv
from hpctrain.plan.resources import Placement
from hpctrain.rundir.paths import RunPaths
from hpctrain.worker.threads import thread_variables

if TYPE_CHECKING:
    from hpctrain.execute.node_environment import NodeEnvironment
    from hpctrain.execute.rank_container import RankContainer
    from hpctrain.execute.slot_nodes import SlotNodes


@dataclass(frozen=True, kw_only=True)
class RankStep:
    """The ranks of an attempt: what of their start is the same wherever they start.

    The fields without a description are those of `hpctrain.execute.worker_group.WorkerGroup`.
    """

    paths: RunPaths
    """The run directory, with a directory for the logs of the attempt."""
    attempt: int
    num_threads: int
    """Compute threads of each rank."""
    environment: Mapping[str, str]
    srun_args: tuple[str, ...] = ()
    log_to_file: bool = True
    is_slice: bool = False
    container: RankContainer | None = None
    node_environment: NodeEnvironment | None = None
    fork_server: RankForks | None = None

    def start(
        self,
        launcher: StepLauncher,
        placement: Placement,
        socket: str,
        *,
        slot: SlotNodes | None = None,
        spare: str = "",
        local: bool = False,
        on_hosts: bool = False,
    ) -> StepProcess:
        """Start the ranks. Not collective.

        Parameters
        ----------
        launcher
            What starts them.
        placement
            How they lie on nodes.
        socket
            Name of the socket to which they connect.
        slot
            The steps in which they start, if a tuner keeps some for them.
        spare
            For ranks that are to wait, in an attempt before theirs, until their own begins: what
            the agents know them by.
        local
            Whether they stay on this machine.
        on_hosts
            Whether they are on the hosts of a hostfile.

        Raises
        ------
        LaunchError
            If the launcher cannot be started.
        """
        command = self._command(placement, socket, spare=spare)
        variables = self._variables(launcher, local=local)
        if slot is not None:
            return self._start_in_slot(slot, command, placement, variables)
        srun_args = self.srun_args
        if self.container is not None:
            entry = self.container.enter(command, launcher, self.environment)
            command, srun_args = [*entry.argv], (*entry.srun_options, *srun_args)
        if self.fork_server is not None and self.fork_server.tries(launcher):
            packed = self.node_environment
            command = self.fork_server.command(
                command,
                variables,
                client=CLIENT if packed is None else packed.fork_client,
                are_alone=placement.max_tasks_per_node == 1,
            )
            variables |= client_variables(command)
        paths = self.paths
        return StepProcess(
            worker_step_argv(
                launcher,
                placement,
                command,
                srun_args=srun_args,
                export=environ.portable_names(variables) if on_hosts else (),
                local=local,
                is_slice=self.is_slice,
            ),
            environment=variables,
            log=paths.spare_log(self.attempt - 1) if spare else paths.launcher_log(self.attempt),
            job_id=None if local else environ.variable("SLURM_JOB_ID"),
        )

    def _command(self, placement: Placement, socket: str, *, spare: str) -> list[str]:
        packed = self.node_environment
        python = sys.executable if packed is None else packed.python
        return worker_argv(
            python if self.container is None else self.container.container.python,
            run_dir=str(self.paths.root),
            attempt=self.attempt,
            world_size=placement.num_workers,
            socket=socket,
            log_to_file=self.log_to_file,
            spare=spare,
        )

    def _variables(self, launcher: StepLauncher, *, local: bool) -> dict[str, str]:
        variables = _inherited_variables(self.srun_args, is_slice=self.is_slice)
        variables.update(thread_variables(self.num_threads))
        variables.update(launcher_variables(launcher.kind, local=local))
        variables.update(self.environment)
        packed = self.node_environment
        return variables if packed is None else packed.variables(variables)

    def _start_in_slot(
        self,
        slot: SlotNodes,
        command: Sequence[str],
        placement: Placement,
        variables: Mapping[str, str],
    ) -> StepProcess:
        step = slot.start_ranks(
            command,
            placement=placement,
            environment=variables,
            log=self.paths.launcher_log(self.attempt),
        )
        if self.fork_server is not None:
            self.fork_server.note(step.reasons)
        return step


def container_for(plan: LaunchPlan, paths: RunPaths) -> RankContainer | None:
    """Return the container of a run's ranks; None for this process's own Python. Not collective."""
    if plan.container is None:
        return None
    from hpctrain.execute.rank_container import RankContainer

    gpus = plan.placement.gpus_per_task
    return RankContainer(plan.container, run_dir=paths.root, num_gpus=gpus)


def node_environment_for(
    plan: LaunchPlan, *, check_stop: Callable[[], None]
) -> NodeEnvironment | None:
    """Return the packed environment of a run; None for that of this process. Not collective.

    Parameters
    ----------
    check_stop
        As of `NodeEnvironment`.
    """
    if plan.environment_pack is None:
        return None
    from hpctrain.execute.node_environment import NodeEnvironment

    return NodeEnvironment(plan.environment_pack, is_slice=plan.is_slice, check_stop=check_stop)


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
