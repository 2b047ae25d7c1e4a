"""The CPUs and GPUs of each rank against the hardware: what is bound where it costs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hpctrain.doctor.finding import Finding, ok, remark, warning
from hpctrain.errors import ConfigError
from hpctrain.plan.gpus import assign_gpus
from hpctrain.rundir.display import counted

_HERE = 10
"""Distance of a NUMA node from itself (ACPI's SLIT)."""


def check_binding(
    ranks: Sequence[Mapping[str, Any]],
    machines: Mapping[str, Mapping[str, Any]],
    *,
    threads: int,
    gpus_per_worker: int,
) -> list[Finding]:
    """Return where CPUs and GPUs of ranks lie badly. The first finding has those of each rank.

    Not collective.

    Parameters
    ----------
    ranks
        What `hpctrain.doctor.world.describe_rank` returned, of all ranks.
    machines
        What `hpctrain.doctor.machine.describe_hardware` returned, by host.
    threads
        Compute threads of a rank.
    gpus_per_worker
        GPUs of a rank, which may see those of others too.
    """
    findings: list[Finding] = []
    by_host: dict[str, list[Mapping[str, Any]]] = {}
    for rank in ranks:
        by_host.setdefault(rank["host"], []).append(rank)
    for host, mine in by_host.items():
        hardware = machines.get(host, {})
        findings += [
            *_shared_cpus(host, mine, hardware),
            *_too_few_cpus(host, mine, threads),
            *_crossing(host, mine, hardware),
            *_far_gpus(host, mine, hardware, gpus_per_worker),
        ]
        if findings:
            # Nodes of a job are alike: one of them says it for all.
            break
    if not ranks:
        return [remark("binding", "no rank answered")]
    if not findings:
        findings = [ok("binding", f"{len(ranks)} ranks: {describe_masks(ranks)}")]
    return [replace(findings[0], ranks=_places(ranks)), *findings[1:]]


def _places(ranks: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Return what each rank may use, by node."""
    # srun prints ranks as they come.
    in_order = sorted(ranks, key=lambda rank: (rank["host"], int(rank.get("local_rank") or 0)))
    return tuple(
        {
            "host": rank["host"],
            "local_rank": int(rank["local_rank"]) if rank.get("local_rank") else None,
            "cpus": list(rank["cpus"]),
            "gpus": list(rank["gpus"]),
        }
        for rank in in_order
    )


def describe_masks(ranks: Sequence[Mapping[str, Any]]) -> str:
    """Return the CPUs of the first ranks in words. Not collective.

    Examples
    --------
    >>> describe_masks([{"local_rank": "0", "cpus": [0, 1, 2, 3]}])
    'local rank 0 on CPUs 0-3'
    """
    first = [
        f"local rank {rank.get('local_rank') or number} on CPUs {shorten(rank['cpus'])}"
        for number, rank in enumerate(_in_order(ranks)[:2])
    ]
    return ", ".join(first) + (", ..." if len(ranks) > len(first) else "")


def _in_order(ranks: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    # srun prints ranks as they come.
    return sorted(ranks, key=lambda rank: int(rank.get("local_rank") or 0))


def shorten(cpus: Sequence[int]) -> str:
    """Return numbers as the kernel writes a list of CPUs. Not collective.

    Examples
    --------
    >>> shorten([0, 1, 2, 8])
    '0-2,8'
    """
    parts: list[list[int]] = []
    for cpu in sorted(cpus):
        if parts and cpu == parts[-1][-1] + 1:
            parts[-1].append(cpu)
        else:
            parts.append([cpu])
    return ",".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts)


def _shared_cpus(
    host: str, ranks: Sequence[Mapping[str, Any]], hardware: Mapping[str, Any]
) -> list[Finding]:
    every = {cpu for node in hardware.get("numa_nodes", ()) for cpu in node["cpus"]}
    masks = [frozenset(rank["cpus"]) for rank in ranks]
    if len(masks) < 2 or len(set().union(*masks)) == sum(map(len, masks)):
        return []
    if all(every and mask >= every for mask in masks):
        if len(hardware["numa_nodes"]) < 2:
            return []
        return [
            warning(
                "binding",
                f"{host}: ranks are not bound, each may use all {len(every)} CPUs",
                why="the kernel moves them between NUMA nodes, away from their memory",
                step="SlurmConfig(srun_args=['--cpu-bind=cores']), if the site does not set it",
            )
        ]
    return [
        warning(
            "binding",
            f"{host}: {len(masks)} ranks share {len(set().union(*masks))} CPUs: "
            f"{describe_masks(ranks)}",
            why="ranks that wait for each other take turns on one core: a step takes as many times "
            "longer",
            step="SlurmConfig(srun_args=['--cpu-bind=cores']), and resources_per_worker={'CPU': n} "
            "as large as the threads of a rank",
        )
    ]


def _too_few_cpus(host: str, ranks: Sequence[Mapping[str, Any]], threads: int) -> list[Finding]:
    few = min(len(rank["cpus"]) for rank in ranks)
    if few >= threads:
        return []
    return [
        warning(
            "binding",
            f"{host}: a rank has {counted(few, 'CPU')} for {threads} threads",
            why="the threads take turns",
            step=f"resources_per_worker={{'CPU': {few}}} for as many threads, or an allocation "
            f"with {counted(threads, 'CPU')} for each rank",
        )
    ]


def _crossing(
    host: str, ranks: Sequence[Mapping[str, Any]], hardware: Mapping[str, Any]
) -> list[Finding]:
    nodes = _numa_nodes(hardware)
    for rank in ranks:
        own = frozenset(rank["cpus"])
        touched = {number for number, node in nodes.items() if own & frozenset(node["cpus"])}
        fits = any(len(node["cpus"]) >= len(own) for node in nodes.values())
        if len(touched) > 1 and fits:
            first, *others = sorted(touched)
            cost = _cost(nodes, first, others[0])
            return [
                warning(
                    "binding",
                    f"{host}: CPUs {shorten(rank['cpus'])} of a rank are on NUMA nodes "
                    f"{', '.join(map(str, sorted(touched)))}, and would fit on one",
                    why=f"memory of the other node is {cost} times as far",
                    step="SlurmConfig(srun_args=['--distribution=block:block', "
                    "'--cpu-bind=cores'])",
                )
            ]
    return []


def _far_gpus(
    host: str,
    ranks: Sequence[Mapping[str, Any]],
    hardware: Mapping[str, Any],
    gpus_per_worker: int,
) -> list[Finding]:
    nodes = _numa_nodes(hardware)
    gpus = [gpu for gpu in hardware.get("gpus", []) if gpu["vendor"] == "NVIDIA"]
    for number, rank in enumerate(_in_order(ranks)):
        if rank.get("num_devices", len(gpus)) != len(gpus):
            # Inside a cgroup that hides some, the others are numbered anew.
            continue
        for entry in _own_gpus(rank, number, len(ranks), gpus_per_worker):
            # The order of sysfs is that of the driver where CUDA_DEVICE_ORDER=PCI_BUS_ID.
            if not entry.isdigit() or int(entry) >= len(gpus):
                continue
            near = gpus[int(entry)]["numa_node"]
            own = frozenset(rank["cpus"])
            home = next((n for n, node in nodes.items() if own & frozenset(node["cpus"])), None)
            is_far = near >= 0 and not own & frozenset(nodes.get(near, {}).get("cpus", ()))
            if home is not None and is_far:
                return [
                    warning(
                        "binding",
                        f"{host}: GPU {entry} is on NUMA node {near}, and the CPUs of its rank, "
                        f"{shorten(rank['cpus'])}, on {home}",
                        why=f"every copy between them crosses the link of the sockets, "
                        f"{_cost(nodes, home, near)} times as far",
                        # Each task then sees one GPU, the closest that no other has: a task that
                        # sees some of a node's would be refused.
                        step="SlurmConfig(srun_args=['--gpu-bind=single:1'])"
                        if gpus_per_worker == 1
                        else "SlurmConfig(srun_args=['--cpu-bind=map_ldom:...']), with the NUMA "
                        "node of the GPUs of each local rank, where the job has whole nodes",
                    )
                ]
    return []


def _own_gpus(
    rank: Mapping[str, Any], local_rank: int, local_world_size: int, gpus_per_worker: int
) -> tuple[str, ...]:
    """Return the GPUs that a rank would compute on; none where it sees too few."""
    try:
        return assign_gpus(
            tuple(rank["gpus"]),
            local_rank=local_rank,
            local_world_size=local_world_size,
            gpus_per_worker=gpus_per_worker,
        )
    except ConfigError:
        return ()


def _numa_nodes(hardware: Mapping[str, Any]) -> dict[int, Mapping[str, Any]]:
    return {node["number"]: node for node in hardware.get("numa_nodes", ())}


def _cost(nodes: Mapping[int, Mapping[str, Any]], here: int, there: int) -> str:
    """Return how many times as far a NUMA node is, by the firmware's own table."""
    order = sorted(nodes)
    distance = nodes[here]["distance"]
    place = order.index(there)
    return f"{distance[place] / _HERE:.2g}" if place < len(distance) else "up to 2"
