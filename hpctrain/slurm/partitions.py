"""What ``sinfo`` prints of partitions, and which of their nodes can hold workers. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from hpctrain.errors import ConfigError
from hpctrain.plan.resources import NodeShape
from hpctrain.plan.site import Site, known_shape
from hpctrain.scaling_config import ScalingConfig
from hpctrain.slurm.cluster_output import count_gpus
from hpctrain.slurm_config import time_limit_minutes


class NoDefaultPartitionError(ConfigError):
    """No partition is named, and Slurm has none for that case."""


@dataclass(frozen=True, kw_only=True)
class EqualNodes:
    """Nodes of one shape in a partition."""

    partition: str
    count: int
    shape: NodeShape
    max_time: str
    """Time limit of the partition, as ``sinfo`` prints it."""

    @property
    def max_minutes(self) -> float:
        """Time limit of the partition."""
        return math.inf if self.max_time == "infinite" else time_limit_minutes(self.max_time)


@dataclass(frozen=True, kw_only=True)
class Partition:
    """A partition, or several that a job may start in."""

    name: str
    """With commas between those of several."""
    others: tuple[str, ...]
    """Names of all partitions."""
    available: bool
    nodes: tuple[EqualNodes, ...]

    @property
    def longest(self) -> EqualNodes:
        """The nodes with the maximum of the time limits: a job starts in one partition."""
        return max(self.nodes, key=lambda equal: equal.max_minutes)

    @property
    def num_nodes(self) -> int:
        """Number of nodes; of several partitions the maximum, as a job starts in one."""
        names = {equal.partition for equal in self.nodes}
        return max(sum(e.count for e in self.nodes if e.partition == name) for name in names)

    @property
    def total_nodes(self) -> int:
        """Number of nodes of all partitions together."""
        return sum(equal.count for equal in self.nodes)

    @property
    def node_shape(self) -> NodeShape:
        """What each of the nodes has."""
        return NodeShape(
            cpus=min(equal.shape.cpus or 0 for equal in self.nodes),
            gpus=min(equal.shape.gpus or 0 for equal in self.nodes),
            mem_mib=min(self._memory, default=None),
        )

    @property
    def _memory(self) -> list[int]:
        return [equal.shape.mem_mib for equal in self.nodes if equal.shape.mem_mib is not None]

    def that_allows(self, time: str | int | timedelta | None) -> Partition:
        """Return the partition without those of several whose time limit is shorter.

        Not collective. Where that of each is, it is returned as it is.

        Parameters
        ----------
        time
            What is asked for, as in SlurmConfig; None is any.
        """
        asked = 0 if time is None else time_limit_minutes(time)
        nodes = tuple(equal for equal in self.nodes if equal.max_minutes >= asked)
        return self._only(nodes) if nodes else self

    def _only(self, nodes: tuple[EqualNodes, ...]) -> Partition:
        names = dict.fromkeys(equal.partition for equal in nodes)
        return replace(self, name=",".join(names), nodes=nodes)

    def of_larger_nodes(self, scaling: ScalingConfig, site: Site) -> Iterator[Partition]:
        """Yield the partition with the nodes that hold a worker, then with those that hold more.

        Not collective. Slurm starts a job on those that are large enough, whatever others there
        are. Where none holds a worker, it is yielded with the largest alone.

        Parameters
        ----------
        scaling
            What is asked for.
        site
            The site profile, whose shape of a node wins over Slurm's.
        """
        cpus, gpus = scaling.num_cpus_per_worker, scaling.num_gpus_per_worker
        memory = scaling.mem_bytes_per_worker or 0

        def room(equal: EqualNodes) -> tuple[float, float, float]:
            """Return for how many workers a node has GPUs, CPUs and memory."""
            shape = known_shape(site, equal.shape)
            has_memory = memory > 0 and shape.mem_mib is not None
            return (
                (shape.gpus or 0) / gpus if gpus else math.inf,
                (shape.cpus or 0) / cpus,
                (shape.mem_mib or 0) * 2**20 / memory if has_memory else math.inf,
            )

        def num_workers(equal: EqualNodes) -> int:
            return math.floor(min(room(equal)))

        numbers = sorted({num_workers(equal) for equal in self.nodes} - {0})
        for number in numbers:
            yield self._only(tuple(e for e in self.nodes if num_workers(e) >= number))
        if not numbers:
            yield self._only((max(self.nodes, key=room),))


def parse_partitions(output: str, name: str | None) -> Partition:
    """Return a partition from ``sinfo --noheader --exact --format=%P|%a|%l|%D|%c|%G|%m``.

    Not collective.

    Parameters
    ----------
    name
        Of the partition; None is the default one. Of several, with commas between them, Slurm
        starts a job in one: they count as one partition that takes what any of them takes.

    Raises
    ------
    NoDefaultPartitionError
        If none is named, and the cluster has no default partition.
    ConfigError
        If there is no such partition.
    """
    rows = [line.split("|") for line in output.splitlines() if line.count("|") == 6]
    names = tuple(dict.fromkeys(row[0].rstrip("*") for row in rows))
    wanted = name or next((row[0].rstrip("*") for row in rows if row[0].endswith("*")), None)
    if wanted is None:
        raise NoDefaultPartitionError(
            f"this cluster has no default partition. Give SlurmConfig(partition=...): one of "
            f"{', '.join(names)}."
        )
    parts = dict.fromkeys(wanted.split(","))
    if unknown := parts.keys() - set(names):
        absent = f", and no {' or '.join(sorted(unknown))}" if len(parts) > 1 else ""
        raise ConfigError(
            f"SlurmConfig(partition={wanted!r}): this cluster has {', '.join(names)}{absent}. Use "
            f"one of these."
        )
    named = [_partition(part, rows, names) for part in parts]
    usable = [partition for partition in named if partition.available] or named
    return Partition(
        name=",".join(partition.name for partition in named),
        others=names,
        available=usable[0].available,
        nodes=tuple(equal for partition in usable for equal in partition.nodes),
    )


def _partition(name: str, rows: Sequence[Sequence[str]], names: tuple[str, ...]) -> Partition:
    mine = [row for row in rows if row[0].rstrip("*") == name]
    return Partition(
        name=name,
        others=names,
        available=any(row[1] == "up" for row in mine),
        nodes=tuple(
            EqualNodes(
                partition=name,
                count=int(row[3]),
                # "64+": some of them have more.
                shape=NodeShape(
                    cpus=int(row[4].rstrip("+")),
                    gpus=count_gpus(row[5]),
                    mem_mib=_real_memory(int(row[6].rstrip("+"))),
                ),
                max_time=row[2],
            )
            for row in mine
        ),
    )


def _real_memory(mib: int) -> int | None:
    # A node has 1 MiB where slurm.conf does not say how much.
    return mib if mib > 1 else None
