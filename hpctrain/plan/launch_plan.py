"""`LaunchPlan`: the resources of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from hpctrain.plan.resources import NodeRange, Placement
from hpctrain.plan.sbatch_options import check_srun_args

if TYPE_CHECKING:
    # An executor imports this module before it starts anything.
    from hpctrain.container import Container
    from hpctrain.pack.header import EnvironmentPack


@dataclass(frozen=True, kw_only=True)
class StepLauncher:
    """The program that starts the ranks of a worker group."""

    program: str
    """``srun``, or the path of an ``mpiexec``."""
    kind: str
    """``srun``, ``hydra`` (MPICH, Intel MPI) or ``openmpi``: the options that the program
    accepts."""
    pmi: str | None = None
    """The value of ``srun --mpi``; None with mpiexec."""


@dataclass(frozen=True, kw_only=True)
class LaunchPlan:
    """The resources of a run, how they are requested, and how ranks start there."""

    launcher: str
    """``local``, ``allocation``, ``slurm``, ``mpiexec``, ``spmd`` or ``inline``."""
    placement: Placement
    """Placement of the workers on the nodes, at full size."""
    job_nodes: NodeRange
    """Number of nodes of the job, including spare ones, and how many it can lose."""
    node_slots: Mapping[str, int] = field(default_factory=dict)
    """Slots of each node of an allocation, or host of a hostfile; other nodes have as many as the
    fullest node of the placement."""
    resize_interval_s: float = 60.0
    """Seconds between two checks whether a run below full size can grow."""
    threads_per_task: int
    """Compute threads of a rank: the same in every home, even if a site adds CPUs to a task."""
    mpi: str
    """The user's MPI setting: ``auto``, ``wheel``, a PMI type, or the path of an mpiexec."""
    directives: Mapping[str, str | None]
    """Options of sbatch, without dashes; None is a switch. Empty unless a job is submitted."""
    first_job_directives: Mapping[str, str | None]
    """Further ones, which a successor does not have: ``--begin``, ``--dependency``, ``--hold``."""
    setup: tuple[str, ...]
    """Shell lines of the batch script before anything of hpctrain."""
    srun_args: tuple[str, ...]
    """Further options for the workers' step."""
    environment: Mapping[str, str]
    """Variables that ranks get in addition to the executor's own."""
    stop_notice_s: int = 120
    """Seconds before the end of the time limit at which ranks are asked to stop."""
    requeue: bool = True
    """Whether the site lets jobs be requeued."""
    # Plans of older versions lack it: the default must be a constant.
    container: Container | None = None
    """The container that ranks run in, with all that it mounts."""
    # As above.
    environment_pack: EnvironmentPack | None = None
    """The packed environment that agents and ranks start in."""
    # As above.
    is_slice: bool = False
    """Whether the run has only the slots of `node_slots`, beside other runs of the allocation, as a
    trial of a sweep has."""
    # As above.
    tuner_sign: str | None = None
    """File that shows that a tuner is at work, which submits the further jobs of the run, since it
    counts those of its sweep; None of a run that submits them itself."""

    def __post_init__(self) -> None:
        """Refuse further options that contradict the plan."""
        check_srun_args(self.srun_args)

    @property
    def in_job(self) -> bool:
        """Whether the executor is in a Slurm job, and starts the ranks as its steps."""
        return self.launcher in ("allocation", "slurm")

    @property
    def has_agents(self) -> bool:
        """Whether there is an agent on each node, between its ranks and the executor."""
        return self.in_job or self.launcher == "mpiexec"

    def to_json(self) -> dict[str, Any]:
        """Return the plan as a JSON object."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class FirstStart:
    """What the agents and ranks of a job's first attempt are started with.

    The executor of a job opens it before its own configuration, whose classes take longer to import
    than ranks to start.
    """

    plan: LaunchPlan
    log_to_file: bool
    """As in ``RunConfig``."""
    node_timeout_s: float
    """As in ``FailureConfig``."""
    own_places: tuple[str, ...]
    """Directories of the user's modules."""
