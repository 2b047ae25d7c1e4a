"""`LaunchPlan`: on what a run runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from hpctrain.plan.resources import NodeRange, Placement
from hpctrain.plan.sbatch_options import check_srun_args


@dataclass(frozen=True, kw_only=True)
class StepLauncher:
    """The program that starts the ranks of a worker group."""

    program: str
    """``srun``, or the path of an ``mpiexec``."""
    kind: str
    """``srun``, ``hydra`` (MPICH, Intel MPI) or ``openmpi``: whose options the program takes."""
    pmi: str | None = None
    """The value of ``srun --mpi``; None with mpiexec."""


@dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    """On what a run runs: the resources, how they are asked for, and how ranks start there."""

    launcher: str
    """``local``, ``allocation``, ``slurm``, ``mpiexec``, ``spmd`` or ``inline``."""
    placement: Placement
    """How the workers lie on the nodes, at full size."""
    job_nodes: NodeRange
    """How many nodes the job has, spare ones included, and how many it can do without."""
    node_slots: Mapping[str, int] = field(default_factory=dict)
    """How many workers each node of an allocation, or host of a hostfile, holds; others hold as
    many as the node of the placement that has the most."""
    resize_interval_s: float = 60.0
    """How often a run that is not at full size looks whether it can grow."""
    threads_per_task: int
    """Compute threads of a rank: the same in every home, whatever CPUs a site adds to a task."""
    mpi: str
    """What the user said of MPI: ``auto``, ``wheel``, a PMI type, or the path of an mpiexec."""
    directives: Mapping[str, str | None]
    """Options of sbatch, without dashes; None is a switch. Empty unless a job is submitted."""
    first_job_directives: Mapping[str, str | None]
    """Further ones, which a successor does not have: ``--begin``, ``--dependency``, ``--hold``."""
    setup: tuple[str, ...]
    """Shell lines of the batch script before anything of hpctrain."""
    srun_args: tuple[str, ...]
    """Further options for the workers' step."""
    environment: Mapping[str, str]
    """Variables that ranks get on top of the executor's own."""
    stop_notice_s: int = 120
    """Seconds before the end of the time limit at which ranks are asked to leave."""
    requeue: bool = True
    """Whether the site lets jobs be requeued."""

    def __post_init__(self) -> None:
        """Refuse further options that contradict the plan."""
        check_srun_args(self.srun_args)

    @property
    def in_job(self) -> bool:
        """Whether the executor is in a job of Slurm, and starts the ranks as steps of it."""
        return self.launcher in ("allocation", "slurm")

    @property
    def has_agents(self) -> bool:
        """Whether there is an agent on each node, between its ranks and the executor."""
        return self.in_job or self.launcher == "mpiexec"

    def to_json(self) -> dict[str, Any]:
        """Return the plan as a JSON object."""
        return asdict(self)
