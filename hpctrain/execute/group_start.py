"""`GroupStart`: how the ranks of a `WorkerGroup` start, here or on the nodes of an allocation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hpctrain.errors import LaunchError
from hpctrain.execute.node_agents import NodeAgents
from hpctrain.execute.process import StepProcess
from hpctrain.execute.rank_step import RankStep
from hpctrain.execute.step_launcher import find_mpiexec, find_step_launcher
from hpctrain.plan.launch_plan import StepLauncher
from hpctrain.plan.resources import Placement

if TYPE_CHECKING:
    from hpctrain.execute.node_answers import Brought


@dataclass(frozen=True, kw_only=True)
class GroupStart:
    """How ranks start: what of it stays the same when the group starts again.

    `mpi` and `note` are those of `hpctrain.execute.worker_group.WorkerGroup`.
    """

    step: RankStep
    mpi: str
    note: Callable[[Brought], None]

    def bring_environment(self, placement: Placement, idle_nodes: Sequence[str]) -> None:
        """Bring the packed environment, if there is one, to nodes without it. Not collective.

        Raises
        ------
        LaunchError
            If a node cannot get it.
        """
        packed = self.step.node_environment
        if packed is None:
            return
        brought = packed.bring(
            _named(placement, idle_nodes),
            placement.num_nodes,
            log=self.step.paths.environment_log(self.step.attempt),
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
        return self.step.start(launcher, placement, socket, local=True)

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
        if (container := self.step.container) is not None:
            nodes = _named(placement, idle_nodes)
            log = self.step.paths.container_log(self.step.attempt)
            container.check(nodes, placement.num_nodes, log=log)
            library = container.library
        if (slot := agents.slot) is not None:
            mpiexec = find_mpiexec("wheel")
            return self.step.start(mpiexec, placement, agents.socket, local=True, slot=slot)
        launcher = agents.mpiexec or find_step_launcher(self.mpi, library=library)
        self._refuse_shared_gpus(launcher, placement)
        on_hosts = agents.mpiexec is not None
        return self.step.start(launcher, placement, agents.socket, on_hosts=on_hosts)

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
        following = replace(self.step, attempt=self.step.attempt + 1)
        return following.start(launcher, placement, agents.socket, spare=spare)

    def _refuse_shared_gpus(self, launcher: StepLauncher, placement: Placement) -> None:
        if self.step.is_slice and placement.gpus_per_task and launcher.kind != "srun":
            raise LaunchError(
                f"{launcher.program} would give these ranks GPUs that other runs of the allocation "
                f"have. Only srun keeps them apart: use an MPI library that speaks a PMI of "
                f"srun --mpi=list, or SlurmConfig(mpi=...) with one of these."
            )


def _named(placement: Placement, idle_nodes: Sequence[str]) -> tuple[str, ...]:
    """Return the names of all nodes; none where Slurm chooses them."""
    return (*placement.nodes, *idle_nodes) if placement.nodes else ()
