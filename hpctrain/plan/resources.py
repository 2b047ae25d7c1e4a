"""From a ScalingConfig to nodes, tasks, CPUs, GPUs and memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hpctrain.config import ScalingConfig
from hpctrain.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class NodeShape:
    """What one node has to give; None is unknown."""

    cpus: int | None = None
    gpus: int | None = None
    cpus_per_gpu: int | None = None
    """CPUs that belong to a GPU; a worker with GPUs that does not say how many CPUs it needs is
    given these, as far as they are there."""


@dataclass(frozen=True, kw_only=True)
class Placement:
    """How the workers lie on the nodes. Every node is filled evenly."""

    num_workers: int
    num_nodes: int
    tasks_per_node: int
    cpus_per_task: int
    gpus_per_task: int
    mem_bytes_per_task: int | None
    nodes: tuple[str, ...] = ()
    """Names of the nodes, where they are chosen; empty leaves the choice to Slurm."""

    @property
    def gpus_per_node(self) -> int:
        """GPUs that the workers of one node use."""
        return self.gpus_per_task * self.tasks_per_node

    @property
    def mem_mib_per_node(self) -> int | None:
        """Memory that the workers of one node ask for, in MiB, rounded up."""
        if self.mem_bytes_per_task is None:
            return None
        return -(-self.mem_bytes_per_task * self.tasks_per_node // 2**20)


@dataclass(frozen=True, kw_only=True)
class NodeRange:
    """How many nodes a job asks for, and can do without."""

    fewest: int
    """It does not begin with less."""
    most: int
    """All workers fit, and spare nodes are left over."""
    enough: int
    """With less it does not go on."""

    @property
    def survives_loss(self) -> bool:
        """Whether the run goes on in the same job when a node is lost."""
        return self.enough < self.most

    def __str__(self) -> str:
        """Return it as Slurm's ``--nodes`` wants it."""
        return str(self.most) if self.fewest == self.most else f"{self.fewest}-{self.most}"


def node_range(scaling: ScalingConfig, placement: Placement) -> NodeRange:
    """Return how many nodes a job asks for: those of the workers, and the spare ones.

    Not collective. An elastic run begins with what it gets.

    Parameters
    ----------
    scaling
        What is asked for.
    placement
        How the workers lie on the nodes at full size.
    """
    most = placement.num_nodes + scaling.slurm.spare_nodes
    enough = -(-max(scaling.min_workers, 1) // placement.tasks_per_node)
    fewest = enough if scaling.elasticity_enabled else most
    return NodeRange(fewest=fewest, most=most, enough=enough)


def place_on_one_node(scaling: ScalingConfig) -> Placement:
    """Return the placement of all workers on this machine. Not collective.

    One machine is there as a whole or not at all, so an elastic run has its full size there.
    """
    return _placement(scaling, num_nodes=1, tasks_per_node=max(scaling.max_workers, 1))


def place_workers(scaling: ScalingConfig, node: NodeShape) -> Placement:
    """Return the placement of workers on nodes of one shape, at full size.

    Not collective.

    Parameters
    ----------
    scaling
        What is asked for. ``slurm.nodes`` and ``slurm.tasks_per_node`` decide where they are given.
    node
        Shape of a node, from the site profile or the partition.

    Raises
    ------
    ConfigError
        If the last node would be part empty, if a worker does not fit a node, or if nothing says
        how many workers a node holds.
    """
    if scaling.max_workers < 1:
        raise ConfigError(
            "num_workers=0 runs in the interpreter that calls fit(), not on nodes. Use 1 or more."
        )
    num_nodes, tasks_per_node = _requested_shape(scaling)
    if num_nodes is None and tasks_per_node is None:
        tasks_per_node = _tasks_that_fit(scaling, node)
        if tasks_per_node is None:
            raise ConfigError(
                f"num_workers={scaling.max_workers}, and nothing says how many workers a node "
                f"holds. Give SlurmConfig(nodes=...) or SlurmConfig(tasks_per_node=...), or a site "
                f"profile with SlurmConfig(site=...)."
            )
        tasks_per_node = min(tasks_per_node, scaling.max_workers)
    if tasks_per_node is None:
        assert num_nodes is not None
        tasks_per_node = _divide(scaling.max_workers, num_nodes)
    if num_nodes is None:
        num_nodes = _count_nodes(scaling.max_workers, tasks_per_node)
    elif num_nodes * tasks_per_node != scaling.max_workers:
        raise ConfigError(
            f"num_workers={scaling.max_workers}, but nodes={num_nodes} with "
            f"tasks_per_node={tasks_per_node} is {num_nodes * tasks_per_node}. Drop one of the "
            f"three, or make them agree."
        )
    placement = _placement(scaling, num_nodes=num_nodes, tasks_per_node=tasks_per_node)
    _check_fit(scaling, placement, node)
    if "CPU" in scaling.resources_per_worker or node.cpus_per_gpu is None:
        return placement
    return replace(placement, cpus_per_task=_cpus_beside_gpus(placement, node))


def place_on_nodes(full: Placement, living: Sequence[str], *, enough: int) -> Placement | None:
    """Return the placement on the nodes that are left, or None if they are too few.

    Not collective. Every node is filled as at full size; what is more than that needs stays empty.

    Parameters
    ----------
    full
        The placement at full size.
    living
        Names of the nodes that can be used, those to use first in front.
    enough
        The fewest nodes to go on with.
    """
    used = tuple(living[: full.num_nodes])
    if len(used) < enough:
        return None
    num_workers = len(used) * full.tasks_per_node
    return replace(full, num_workers=num_workers, num_nodes=len(used), nodes=used)


def _cpus_beside_gpus(placement: Placement, node: NodeShape) -> int:
    assert node.cpus_per_gpu is not None
    cpus = node.cpus_per_gpu * placement.gpus_per_task
    if node.cpus is not None:
        cpus = min(cpus, node.cpus // placement.tasks_per_node)
    return max(cpus, 1)


def _requested_shape(scaling: ScalingConfig) -> tuple[int | None, int | None]:
    nodes, tasks = scaling.slurm.nodes, scaling.slurm.tasks_per_node
    if scaling.placement_strategy == "STRICT_PACK":
        if nodes not in (None, 1):
            raise ConfigError(
                f"placement_strategy='STRICT_PACK' is one node, but nodes={nodes}. Use 'PACK', or "
                f"drop nodes."
            )
        nodes = 1
    if scaling.placement_strategy in ("SPREAD", "STRICT_SPREAD"):
        if tasks not in (None, 1):
            raise ConfigError(
                f"placement_strategy={scaling.placement_strategy!r} is one worker a node, but "
                f"tasks_per_node={tasks}. Use 'PACK', or drop tasks_per_node."
            )
        tasks = 1
    return nodes, tasks


def _tasks_that_fit(scaling: ScalingConfig, node: NodeShape) -> int | None:
    limits = []
    if node.cpus is not None:
        limits.append((node.cpus // scaling.num_cpus_per_worker, "CPU", node.cpus))
    if scaling.num_gpus_per_worker and node.gpus is not None:
        limits.append((node.gpus // scaling.num_gpus_per_worker, "GPU", node.gpus))
    if scaling.num_gpus_per_worker and node.gpus is None:
        return None
    if not limits:
        return None
    tasks, kind, available = min(limits)
    if tasks == 0:
        asked = scaling.num_cpus_per_worker if kind == "CPU" else scaling.num_gpus_per_worker
        raise ConfigError(
            f"resources_per_worker {kind}={asked}, but a node has {available}. A worker lives on "
            f"one node: ask for less, or choose another partition or node type."
        )
    return tasks


def _divide(num_workers: int, num_nodes: int) -> int:
    tasks, rest = divmod(num_workers, num_nodes)
    if rest == 0 and tasks > 0:
        return tasks
    fewer, more = tasks * num_nodes, (tasks + 1) * num_nodes
    choice = f"{fewer} or {more}" if fewer else f"{more}"
    raise ConfigError(
        f"num_workers={num_workers} does not fill {num_nodes} nodes evenly. Use {choice} workers, "
        f"or change nodes."
    )


def _count_nodes(num_workers: int, tasks_per_node: int) -> int:
    nodes, rest = divmod(num_workers, tasks_per_node)
    if rest == 0 and nodes > 0:
        return nodes
    fewer, more = nodes * tasks_per_node, (nodes + 1) * tasks_per_node
    choice = f"{fewer} or {more}" if fewer else f"{more}"
    raise ConfigError(
        f"num_workers={num_workers} does not fill nodes of {tasks_per_node} workers. Use {choice}, "
        f"or change tasks_per_node."
    )


def _placement(scaling: ScalingConfig, *, num_nodes: int, tasks_per_node: int) -> Placement:
    return Placement(
        num_workers=max(scaling.max_workers, 1),
        num_nodes=num_nodes,
        tasks_per_node=tasks_per_node,
        cpus_per_task=scaling.num_cpus_per_worker,
        gpus_per_task=scaling.num_gpus_per_worker,
        mem_bytes_per_task=scaling.mem_bytes_per_worker,
    )


def _check_fit(scaling: ScalingConfig, placement: Placement, node: NodeShape) -> None:
    needs = (
        ("CPU", placement.cpus_per_task * placement.tasks_per_node, node.cpus),
        ("GPU", placement.gpus_per_node, node.gpus),
    )
    for kind, needed, available in needs:
        if available is not None and needed > available:
            if scaling.placement_strategy == "STRICT_PACK":
                way_out = "Use placement_strategy='PACK'"
            else:
                way_out = "Use more nodes"
            raise ConfigError(
                f"{placement.tasks_per_node} workers a node need {needed} {kind}s, but a node has "
                f"{available}. {way_out}, or less {kind} a worker."
            )
