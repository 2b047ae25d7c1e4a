"""`GroupStart`: how the ranks of a `WorkerGroup` start, here or on the nodes of an allocation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hpctrain.errors import LaunchError
from hpctrain.execute.node_agents import NodeAgents
from hpctrain.execute.process import StepProcess
from hpctrain.execute.rank_forks import RankForks
from hpctrain.execute.rank_step import start_ranks
from hpctrain.execute.step_launcher import find_mpiexec, find_step_launcher
from hpctrain.plan.launch_plan import StepLauncher
from hpctrain.plan.resources import Placement
from hpctrain.rundir.paths import RunPaths

if TYPE_CHECKING:
    from hpctrain.execute.node_answers import Brought
    from hpctrain.execute.node_environment import NodeEnvironment
    from hpctrain.execute.rank_container import RankContainer
    from hpctrain.execute.slot_nodes import SlotNodes


@dataclass(frozen=True, kw_only=True)
class GroupStart:
    """How ranks start: what of it stays the same when the group starts again.

    The fields without a description are those of `hpctrain.execute.worker_group.WorkerGroup`.
    """

    paths: RunPaths
    """With the directory of logs."""
    attempt: int
    mpi: str
    num_threads: int
    """Compute threads of each rank."""
    environment: Mapping[str, str]
    srun_args: tuple[str, ...]
    log_to_file: bool
    is_slice: bool
    container: RankContainer | None
    node_environment: NodeEnvironment | None
    note: Callable[[Brought], None]
    fork_server: RankForks | None

    def bring_environment(self, placement: Placement, idle_nodes: Sequence[str]) -> None:
        """Bring the packed environment, if there is one, to nodes without it. Not collective.

        Raises
        ------
        LaunchError
            If a node cannot get it.
        """
        if self.node_environment is None:
            return
        brought = self.node_environment.bring(
            _named(placement, idle_nodes),
            placement.num_nodes,
            log=self.paths.environment_log(self.attempt),
        )
        if brought is not None:
            self.note(brought)

    def start_here(self, launcher: StepLauncher, placement: Placement, socket: str) -> StepProcess:
        """Start ranks on this machine. Not collective.

        Parameters
        ----------
        launcher
            What starts them.
        socket
            Name of the socket to which they connect.

        Raises
        ------
        LaunchError
            If the launcher cannot be started.
        """
        return self._start(launcher, placement, socket, local=True)

    def start_on_nodes(
        self, placement: Placement, idle_nodes: Sequence[str], agents: NodeAgents
    ) -> StepProcess:
        """Start ranks beside the agents of their nodes. Not collective.

        Raises
        ------
        LaunchError
            If they cannot be started, a container does not start on each node, or they would get
            GPUs that other runs have.
        """
        library = None
        if self.container is not None:
            nodes, log = _named(placement, idle_nodes), self.paths.container_log(self.attempt)
            self.container.check(nodes, placement.num_nodes, log=log)
            library = self.container.library
        if (slot := agents.slot) is not None:
            mpiexec = find_mpiexec("wheel")
            return self._start(mpiexec, placement, agents.socket, local=True, slot=slot)
        launcher = agents.mpiexec or find_step_launcher(self.mpi, library=library)
        self._refuse_shared_gpus(launcher, placement)
        on_hosts = agents.mpiexec is not None
        return self._start(launcher, placement, agents.socket, local=False, on_hosts=on_hosts)

    def start_spare(
        self, placement: Placement, agents: NodeAgents, spare: str
    ) -> StepProcess | None:
        """Start the ranks of the next attempt, which wait until it begins.

        Not collective. Returns None where srun does not start them.

        Parameters
        ----------
        spare
            What the agents are to know them by.

        Raises
        ------
        LaunchError
            If they cannot be started.
        """
        launcher = find_step_launcher(self.mpi)
        if launcher.kind != "srun":
            return None
        following = replace(self, attempt=self.attempt + 1)
        return following._start(launcher, placement, agents.socket, local=False, spare=spare)

    def _refuse_shared_gpus(self, launcher: StepLauncher, placement: Placement) -> None:
        if self.is_slice and placement.gpus_per_task and launcher.kind != "srun":
            raise LaunchError(
                f"{launcher.program} would give these ranks GPUs that other runs of the allocation "
                f"have. Only srun keeps them apart: use an MPI library that speaks a PMI of "
                f"srun --mpi=list, or SlurmConfig(mpi=...) with one of these."
            )

    def _start(
        self,
        launcher: StepLauncher,
        placement: Placement,
        socket: str,
        *,
        local: bool,
        on_hosts: bool = False,
        slot: SlotNodes | None = None,
        spare: str = "",
    ) -> StepProcess:
        return start_ranks(
            launcher,
            placement,
            paths=self.paths,
            attempt=self.attempt,
            socket=socket,
            num_threads=self.num_threads,
            environment=self.environment,
            srun_args=self.srun_args,
            log_to_file=self.log_to_file,
            local=local,
            on_hosts=on_hosts,
            is_slice=self.is_slice,
            container=self.container,
            node_environment=self.node_environment,
            fork_server=self.fork_server,
            slot=slot,
            spare=spare,
        )


def _named(placement: Placement, idle_nodes: Sequence[str]) -> tuple[str, ...]:
    """Return the names of all nodes; none where Slurm chooses them."""
    return (*placement.nodes, *idle_nodes) if placement.nodes else ()
