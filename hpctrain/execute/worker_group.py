"""`WorkerGroup`: a set of MPI ranks that run functions."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpctrain.checks import check_count
from hpctrain.config import ScalingConfig
from hpctrain.errors import ConfigError
from hpctrain.execute.group_start import GroupStart
from hpctrain.execute.health import Health
from hpctrain.execute.node_agents import NodeAgents
from hpctrain.execute.process import StepProcess
from hpctrain.execute.rank_forks import RankForks
from hpctrain.execute.rank_group import RankGroup
from hpctrain.execute.rank_step import RankStep
from hpctrain.log import log
from hpctrain.plan.resources import Placement, place_on_one_node
from hpctrain.rundir.paths import RunPaths

if TYPE_CHECKING:
    from hpctrain.execute.node_answers import Brought
    from hpctrain.execute.node_environment import NodeEnvironment
    from hpctrain.execute.rank_container import RankContainer


class WorkerGroup(RankGroup):
    """MPI ranks, started together by mpiexec on this machine or by srun inside an allocation.

    A group that is made without `placement` and `path` starts at once, another one by `start`.

    Parameters
    ----------
    num_workers
        Number of ranks.
    num_cpus_per_worker, num_gpus_per_worker
        What each of them has, where `placement` does not set it; compute threads are as many as
        CPUs.
    placement
        How they lie on nodes; by default all on this machine.
    idle_nodes
        Nodes of the job that have no ranks, but an agent.
    in_allocation
        Whether to start them on the nodes of the allocation that this process is in, each of which
        has an agent.
    agents
        The agents of the allocation's nodes, where they are to outlive this group.
    mpi
        As in `SlurmConfig`.
    srun_args
        Further options of the step.
    is_slice
        Whether ranks of other runs are on the same nodes of the allocation.
    container
        The container that ranks of an allocation run in; None for this process's own Python.
    node_environment
        The packed environment that agents and ranks of an allocation start in; None for that of
        this process.
    note
        Gets how nodes got that environment.
    fork_server
        What forks ranks; None starts an interpreter for each.
    begun
        What starts the ranks, where it was started before: with `agents`, and for this attempt.
    environment
        Variables that ranks get on top of this process's own.
    path
        Directory for logs, which exists; by default a temporary one that ends with the group.
    attempt
        Number that every frame of these ranks carries.
    log_to_file
        Whether each rank's output goes to a file of its own.

    Examples
    --------
    >>> group = WorkerGroup(num_workers=2)              # doctest: +SKIP
    >>> group.execute(os.getpid)                        # doctest: +SKIP
    [4101, 4102]
    >>> group.shutdown()                                # doctest: +SKIP
    """

    def __init__(
        self,
        num_workers: int = 1,
        num_cpus_per_worker: int = 1,
        num_gpus_per_worker: int = 0,
        *,
        placement: Placement | None = None,
        idle_nodes: Sequence[str] = (),
        in_allocation: bool = False,
        agents: NodeAgents | None = None,
        mpi: str = "auto",
        srun_args: tuple[str, ...] = (),
        is_slice: bool = False,
        container: RankContainer | None = None,
        node_environment: NodeEnvironment | None = None,
        note: Callable[[Brought], None] = lambda brought: None,
        fork_server: RankForks | None = None,
        begun: StepProcess | None = None,
        environment: Mapping[str, str] | None = None,
        path: Path | None = None,
        attempt: int = 1,
        log_to_file: bool = True,
    ) -> None:
        self._resources = {"CPU": num_cpus_per_worker, "GPU": num_gpus_per_worker}
        self._is_placed_here = placement is None
        placed = placement or self._place(num_workers)
        paths = RunPaths(path or Path(tempfile.mkdtemp(prefix="hpctrain-group-")))
        super().__init__(
            placed,
            GroupStart(
                step=RankStep(
                    paths=paths,
                    attempt=attempt,
                    num_threads=num_cpus_per_worker,
                    environment=dict(environment or {}),
                    srun_args=srun_args,
                    log_to_file=log_to_file,
                    is_slice=is_slice,
                    container=container,
                    node_environment=node_environment,
                    fork_server=fork_server,
                ),
                mpi=mpi,
                note=note,
            ),
            idle_nodes=idle_nodes,
            agents=(agents or NodeAgents(paths)) if in_allocation else None,
            owns_agents=agents is None,
            owns_path=path is None,
            begun=begun,
        )
        if placement is None and path is None:
            self.start()

    def _place(self, num_workers: int) -> Placement:
        return place_on_one_node(
            ScalingConfig(
                num_workers=num_workers,
                use_gpu=self._resources["GPU"] > 0,
                resources_per_worker={k: v for k, v in self._resources.items() if v},
            )
        )

    def add_workers(self, num_workers: int) -> None:
        """Start so many more ranks, of a group on this machine.

        The ranks of a group are one MPI world, so all of them start anew: what functions have left
        in the processes is gone, which is logged.

        Parameters
        ----------
        num_workers
            How many more.

        Raises
        ------
        ConfigError
            If it is not a number above 0, or the group's nodes were given by the caller.
        LaunchError
            If they cannot be started.
        """
        check_count("add_workers(num_workers=...)", num_workers, at_least=1)
        self._start_anew(len(self) + num_workers, f"add_workers({num_workers})")

    def remove_workers(self, worker_indexes: Sequence[int]) -> None:
        """End ranks, of a group on this machine; the others start anew, as in `add_workers`.

        Parameters
        ----------
        worker_indexes
            Their numbers. The others are numbered anew, without gaps.

        Raises
        ------
        ConfigError
            If none would be left, or the group's nodes were given by the caller.
        LaunchError
            If the others cannot be started.
        ValueError
            If there is no such rank.
        """
        removed = {self._check_rank(rank) for rank in worker_indexes}
        call = f"remove_workers({sorted(removed)})"
        if len(removed) == len(self):
            raise ConfigError(f"{call} would leave no rank. Call shutdown().")
        if removed:
            self._start_anew(len(self) - len(removed), call)

    def _start_anew(self, num_workers: int, call: str) -> None:
        if not self._is_placed_here:
            raise ConfigError(
                f"{call}: the nodes of this group were given to it. Call shutdown(), and make "
                f"another one for {num_workers} ranks."
            )
        placement = self._place(num_workers)
        log(f"{call}: all ranks start anew, as one MPI world of {num_workers}.")
        self.shutdown()
        self.placement = placement
        self.health = Health(num_nodes=placement.num_nodes, gpus_on=placement.gpus_on)
        self.start()
