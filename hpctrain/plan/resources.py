"""From a ScalingConfig to nodes, tasks, CPUs, GPUs and memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING

from hpctrain.errors import ConfigError
from hpctrain.plan.layout import share_out

if TYPE_CHECKING:
    # An executor imports this module before it starts anything.
    from hpctrain.scaling_config import ScalingConfig


@dataclass(frozen=True, kw_only=True)
class NodeShape:
    """Resources of one node; None is unknown."""

    cpus: int | None = None
    gpus: int | None = None
    mem_mib: int | None = None
    cpus_per_gpu: int | None = None
    """CPUs that belong to a GPU; a worker with GPUs and without a number of CPUs gets these, as far
    as available."""


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Placement of workers on nodes. Ranks are in blocks: the first ones on the first node."""

    tasks_per_node: tuple[int, ...]
    """Workers on each node, in the order of the nodes."""
    cpus_per_task: int
    gpus_per_task: int
    mem_bytes_per_task: int | None
    nodes: tuple[str, ...] = ()
    """Names of the nodes, if hpctrain chooses them; empty leaves the choice to Slurm."""
    srun_shares_out: bool = True
    """Whether srun's own block distribution by CPUs gives the same numbers."""

    @property
    def num_workers(self) -> int:
        """Workers on all nodes together."""
        return sum(self.tasks_per_node)

    @property
    def num_nodes(self) -> int:
        """Nodes that have workers."""
        return len(self.tasks_per_node)

    @property
    def max_tasks_per_node(self) -> int:
        """Workers on the fullest node."""
        return max(self.tasks_per_node)

    @property
    def is_even(self) -> bool:
        """Whether every node has the same number of workers."""
        return min(self.tasks_per_node) == self.max_tasks_per_node

    @property
    def gpus_per_node(self) -> int:
        """Maximum of GPUs that the workers of one node use."""
        return self.gpus_per_task * self.max_tasks_per_node

    @property
    def mem_mib_per_node(self) -> int | None:
        """Maximum of memory that the workers of one node request, in MiB, rounded up."""
        if self.mem_bytes_per_task is None:
            return None
        return -(-self.mem_bytes_per_task * self.max_tasks_per_node // 2**20)

    def gpus_on(self, node: str) -> int:
        """Return how many GPUs workers of a node use, or could use later. Not collective."""
        if node not in self.nodes:
            return self.gpus_per_node
        return self.gpus_per_task * self.tasks_per_node[self.nodes.index(node)]


@dataclass(frozen=True, kw_only=True)
class NodeRange:
    """How many nodes a job requests, and can lose."""

    fewest: int
    """It does not begin with fewer."""
    most: int
    """All workers fit, and spare nodes remain."""
    enough: int
    """It does not continue with fewer."""
    min_workers: int
    """Nor if the remaining nodes hold fewer workers."""

    @property
    def survives_loss(self) -> bool:
        """Whether the run continues in the same job when a node is lost."""
        return self.enough < self.most

    def __str__(self) -> str:
        """Return the value of Slurm's ``--nodes``."""
        return str(self.most) if self.fewest == self.most else f"{self.fewest}-{self.most}"


def node_range(
    scaling: ScalingConfig, placement: Placement, *, slots: Collection[int] = ()
) -> NodeRange:
    """Return how many nodes a job requests: those for workers, and spare ones.

    Not collective. An elastic run begins with the nodes that it gets.

    Parameters
    ----------
    scaling
        What is asked for.
    placement
        How the workers lie on the nodes at full size.
    slots
        Slots of the nodes, if known; otherwise each holds as many workers as the fullest node.
    """
    most = placement.num_nodes + scaling.slurm.spare_nodes
    if not scaling.elasticity_enabled:
        return NodeRange(
            fewest=most,
            most=most,
            enough=placement.num_nodes,
            min_workers=placement.num_workers,
        )
    min_workers = max(scaling.min_workers, 1)
    room = slots or [placement.max_tasks_per_node] * placement.num_nodes
    held = accumulate(sorted(room, reverse=True))
    enough = 1 + sum(workers < min_workers for workers in held)
    return NodeRange(fewest=enough, most=most, enough=enough, min_workers=min_workers)


def place_on_one_node(scaling: ScalingConfig) -> Placement:
    """Return the placement of all workers on this machine. Not collective.

    A single machine cannot lose a node, so an elastic run has its full size there.
    """
    return make_placement(scaling, (max(scaling.max_workers, 1),))


def place_workers(
    scaling: ScalingConfig, node: NodeShape, *, num_nodes: int | None = None
) -> Placement:
    """Return the placement of workers on nodes of one shape, at full size.

    Not collective. Nodes have equal numbers of workers, or some have one less.

    Parameters
    ----------
    scaling
        The request. ``slurm.nodes`` and ``slurm.tasks_per_node`` take precedence.
    node
        Shape of a node, from the site profile or the partition.
    num_nodes
        Number of nodes, if known: the limit for ``SPREAD``.

    Raises
    ------
    ConfigError
        If a node would be empty, if a worker does not fit a node, or if the number of workers per
        node is unknown.
    """
    workers = scaling.max_workers
    nodes, tasks = requested_shape(scaling)
    if nodes is tasks is None and scaling.placement_strategy == "SPREAD":
        spread = workers if num_nodes is None else num_nodes - scaling.slurm.spare_nodes
        nodes = max(min(workers, spread), 1)
    if nodes is None:
        tasks = tasks or _tasks_that_fit(scaling, node)
        if tasks is None:
            raise ConfigError(
                f"num_workers={workers}, but the number of workers per node is unknown. Give "
                f"SlurmConfig(nodes=...) or SlurmConfig(tasks_per_node=...), or a site profile "
                f"with SlurmConfig(site=...)."
            )
        nodes = -(-workers // tasks)
    elif tasks is not None and nodes * tasks < workers:
        raise ConfigError(
            f"num_workers={workers}, but nodes={nodes} with tasks_per_node={tasks} is "
            f"{nodes * tasks}. Drop one of the three, or make them agree."
        )
    if nodes > workers:
        raise ConfigError(
            f"num_workers={workers} leaves some of {nodes} nodes empty. Use {nodes} workers or "
            f"more, or change nodes."
        )
    placement = make_placement(scaling, share_out(workers, [workers] * nodes, num_nodes=nodes))
    _check_fit(scaling, placement, node)
    if "CPU" in scaling.resources_per_worker or node.cpus_per_gpu is None:
        return placement
    cpus = None if node.cpus is None else node.cpus // placement.max_tasks_per_node
    return replace(placement, cpus_per_task=cpus_beside_gpus(placement, node.cpus_per_gpu, cpus))


def place_on_nodes(full: Placement, slots: Mapping[str, int], *, fewest: int) -> Placement | None:
    """Return the placement on the remaining nodes, or None if they hold too few workers.

    Not collective. No node gets more workers than one has at full size.

    Parameters
    ----------
    full
        The placement at full size.
    slots
        Slots of each usable node; the preferred ones first.
    fewest
        The fewest workers with which the run continues.
    """
    room = [min(held, full.max_tasks_per_node) for held in slots.values()]
    num_workers = min(full.num_workers, sum(room))
    if num_workers < max(fewest, 1):
        return None
    return name_nodes(full, slots, share_out(num_workers, room, num_nodes=full.num_nodes))


def name_nodes(placement: Placement, nodes: Iterable[str], counts: Iterable[int]) -> Placement:
    """Return a placement on named nodes, without those that have no workers. Not collective."""
    used = {node: count for node, count in zip(nodes, counts, strict=True) if count}
    return replace(placement, tasks_per_node=tuple(used.values()), nodes=tuple(used))


def make_placement(scaling: ScalingConfig, tasks_per_node: tuple[int, ...]) -> Placement:
    """Return the placement with these numbers of workers on nodes. Not collective."""
    return Placement(
        tasks_per_node=tasks_per_node,
        cpus_per_task=scaling.num_cpus_per_worker,
        gpus_per_task=scaling.num_gpus_per_worker,
        mem_bytes_per_task=scaling.mem_bytes_per_worker,
    )


def cpus_beside_gpus(placement: Placement, cpus_per_gpu: int, available: int | None) -> int:
    """Return the default CPUs of a worker: those of its GPUs. Not collective.

    Parameters
    ----------
    available
        CPUs available to it; None is unknown.
    """
    cpus = cpus_per_gpu * placement.gpus_per_task
    return max(cpus if available is None else min(cpus, available), 1)


def requested_shape(scaling: ScalingConfig) -> tuple[int | None, int | None]:
    """Return how many nodes, and at most how many workers on a node, a request asks for.

    Not collective. None is unspecified.

    Raises
    ------
    ConfigError
        If its fields contradict each other.
    """
    if scaling.max_workers < 1:
        raise ConfigError(
            "num_workers=0 runs in the interpreter that calls fit(), not on nodes. Use 1 or more."
        )
    nodes, tasks = scaling.slurm.nodes, scaling.slurm.tasks_per_node
    strategy = scaling.placement_strategy
    if strategy == "STRICT_PACK":
        if nodes not in (None, 1):
            raise ConfigError(
                f"placement_strategy='STRICT_PACK' is one node, but nodes={nodes}. Use 'PACK', or "
                f"drop nodes."
            )
        nodes = 1
    if strategy in ("SPREAD", "STRICT_SPREAD") and tasks not in (None, 1):
        raise ConfigError(
            f"placement_strategy={strategy!r} is one worker a node, but tasks_per_node={tasks}. "
            f"Use 'PACK', or drop tasks_per_node."
        )
    return nodes, 1 if strategy == "STRICT_SPREAD" else tasks


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
    if scaling.mem_bytes_per_worker and node.mem_mib is not None:
        memory = node.mem_mib * 2**20
        limits.append((memory // scaling.mem_bytes_per_worker, "memory", memory))
    tasks, kind, available = min(limits)
    if tasks == 0:
        asked = {
            "CPU": scaling.num_cpus_per_worker,
            "GPU": scaling.num_gpus_per_worker,
            "memory": scaling.mem_bytes_per_worker,
        }
        raise ConfigError(
            f"resources_per_worker {kind}={asked[kind]}, but a node has {available}. A worker runs "
            f"on one node: request less, or choose another partition or node type."
        )
    return tasks


def _check_fit(scaling: ScalingConfig, placement: Placement, node: NodeShape) -> None:
    needs = (
        ("CPU", "CPUs", placement.cpus_per_task * placement.max_tasks_per_node, node.cpus),
        ("GPU", "GPUs", placement.gpus_per_node, node.gpus),
        ("memory", "MiB of memory", placement.mem_mib_per_node, node.mem_mib),
    )
    for kind, unit, needed, available in needs:
        if available is not None and needed is not None and needed > available:
            if scaling.placement_strategy == "STRICT_PACK":
                way_out = "Use placement_strategy='PACK'"
            else:
                way_out = "Use more nodes"
            raise ConfigError(
                f"{placement.max_tasks_per_node} workers a node need {needed} {unit}, but a node "
                f"has {available}. {way_out}, or less {kind} per worker."
            )
