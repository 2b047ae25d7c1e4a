"""The placement of workers in an allocation that the user requested."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hpctrain.errors import ConfigError
from hpctrain.plan.layout import describe_counts, share_out
from hpctrain.plan.resources import (
    Placement,
    cpus_beside_gpus,
    make_placement,
    name_nodes,
    requested_shape,
)
from hpctrain.scaling_config import ScalingConfig


@dataclass(frozen=True, kw_only=True)
class AllocatedNode:
    """The share of one node that an allocation has; None is unknown."""

    tasks: int | None = None
    """Tasks that Slurm has placed on it, if the request named a number of them."""
    cpus: int | None = None
    gpus: int | None = None
    mem_mib: int | None = None


def place_in_allocation(
    scaling: ScalingConfig, nodes: Mapping[str, AllocatedNode], *, cpus_per_gpu: int | None = None
) -> tuple[Placement, dict[str, int]]:
    """Return the placement of all workers in an allocation, and how many each node can hold.

    Not collective. A node holds as many workers as it has tasks. If that does not suffice, or the
    number of tasks is unknown, it holds as many as its CPUs, GPUs and memory allow. Nodes are named
    unless all of them get the same number of workers.

    Parameters
    ----------
    scaling
        What is asked for.
    nodes
        The nodes by name, in Slurm's order.
    cpus_per_gpu
        CPUs of a worker for each of its GPUs, where `scaling` does not give their number.

    Raises
    ------
    ConfigError
        If the allocation does not hold the workers, with the numbers that it does.
    """
    num_nodes, most = requested_shape(scaling)
    spread = num_nodes is not None or scaling.placement_strategy == "SPREAD"
    ways: list[tuple[list[int], bool]] = []
    by_resources = [_room(scaling, node) for node in nodes.values()]
    if all(node.tasks is not None for node in nodes.values()):
        by_tasks = zip(nodes.values(), by_resources, strict=True)
        ways.append(([min(node.tasks or 0, room) for node, room in by_tasks], spread))
    # If the capacity of a node is unknown, each gets as few workers as possible.
    is_known = all(_is_known(scaling, node) for node in nodes.values())
    ways.append((by_resources, spread or not is_known))

    def placed(way: tuple[list[int], bool]) -> int:
        return min(sum(_usable(scaling, way[0], num_nodes, most)), scaling.max_workers)

    # The first of the choices that place the most workers.
    slots, spread = max(ways, key=placed)
    usable = _usable(scaling, slots, num_nodes, most)
    num_workers = placed((slots, spread))
    _check(scaling, usable, num_workers=num_workers, num_nodes=num_nodes, most_nodes=len(nodes))
    used_at_least = sum(room > 0 for room in usable) if spread else 1
    counts = share_out(num_workers, usable, num_nodes=used_at_least)
    placement = name_nodes(make_placement(scaling, counts), nodes, counts)
    if "CPU" not in scaling.resources_per_worker and cpus_per_gpu is not None:
        cpus = cpus_beside_gpus(placement, cpus_per_gpu, _cpus_of_each(placement, nodes))
        placement = replace(placement, cpus_per_task=cpus)
    if placement.is_even and placement.num_nodes == len(nodes):
        placement = replace(placement, nodes=())
    elif not placement.is_even:
        placement = replace(placement, srun_shares_out=_are_by_cpus(placement, nodes))
    return placement, dict(zip(nodes, slots, strict=True))


def _room(scaling: ScalingConfig, node: AllocatedNode) -> int:
    """Return for how many workers a node has CPUs, GPUs and memory, as far as known."""
    limits = [scaling.max_workers]
    if node.cpus is not None:
        limits.append(node.cpus // scaling.num_cpus_per_worker)
    if node.gpus is not None and scaling.num_gpus_per_worker:
        limits.append(node.gpus // scaling.num_gpus_per_worker)
    if node.mem_mib is not None and scaling.mem_bytes_per_worker:
        limits.append(node.mem_mib * 2**20 // scaling.mem_bytes_per_worker)
    return min(limits)


def _is_known(scaling: ScalingConfig, node: AllocatedNode) -> bool:
    return node.cpus is not None and (node.gpus is not None or not scaling.num_gpus_per_worker)


def _usable(
    scaling: ScalingConfig, slots: Sequence[int], num_nodes: int | None, most: int | None
) -> list[int]:
    """Return `slots` without spare nodes, limited to the number that the request allows."""
    largest_first = sorted(range(len(slots)), key=lambda node: -slots[node])
    kept = set(largest_first[: max(len(slots) - scaling.slurm.spare_nodes, 0)][:num_nodes])
    return [
        0 if node not in kept else room if most is None else min(room, most)
        for node, room in enumerate(slots)
    ]


def _cpus_of_each(placement: Placement, nodes: Mapping[str, AllocatedNode]) -> int | None:
    """Return the CPUs for each worker, on the node with the fewest CPUs for each."""
    shares = [
        cpus // count
        for node, count in zip(placement.nodes, placement.tasks_per_node, strict=True)
        if (cpus := nodes[node].cpus) is not None
    ]
    return min(shares, default=None)


def _are_by_cpus(placement: Placement, nodes: Mapping[str, AllocatedNode]) -> bool:
    """Return whether the CPUs of the nodes alone lead to these numbers of workers."""
    room = [(nodes[node].cpus or 0) // placement.cpus_per_task for node in placement.nodes]
    if sum(room) < placement.num_workers:
        return False
    by_cpus = share_out(placement.num_workers, room, num_nodes=placement.num_nodes)
    return by_cpus == placement.tasks_per_node


def _check(
    scaling: ScalingConfig,
    usable: Sequence[int],
    *,
    num_workers: int,
    num_nodes: int | None,
    most_nodes: int,
) -> None:
    spare = scaling.slurm.spare_nodes
    if (num_nodes or 1) + spare > most_nodes:
        raise ConfigError(
            f"num_workers={scaling.num_workers} needs {(num_nodes or 1) + spare} nodes"
            f"{' with the spare ones' if spare else ''}, but this allocation has {most_nodes}. "
            f"Request a larger one, or fewer nodes."
        )
    if scaling.max_workers < (num_nodes or 1):
        raise ConfigError(
            f"num_workers={scaling.num_workers} leaves some of {num_nodes} nodes empty. Use "
            f"{num_nodes} workers or more, or change nodes."
        )
    if num_workers >= max(scaling.min_workers, num_nodes or 1):
        return
    needs = f"{scaling.num_cpus_per_worker} CPU"
    if scaling.num_gpus_per_worker:
        needs += f" and {scaling.num_gpus_per_worker} GPU"
    if scaling.mem_bytes_per_worker:
        needs += f" and {-(-scaling.mem_bytes_per_worker // 2**20)} MiB of memory"
    strategy = scaling.placement_strategy
    asked = "" if strategy == "PACK" else f" and placement_strategy={strategy!r}"
    fitting = f"Use num_workers={sum(usable)} or less" if any(usable) else "Request less per worker"
    raise ConfigError(
        f"num_workers={scaling.num_workers} with {needs} each{asked}: the nodes of this allocation "
        f"hold {describe_counts(usable)} of them{' besides the spare ones' if spare else ''}. "
        f"{fitting}, or make a larger allocation."
    )
