"""What Slurm says of a whole cluster, for a site profile."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from hpctrain import environ
from hpctrain.errors import ConfigError, LaunchError
from hpctrain.plan.container import RUNTIMES
from hpctrain.slurm.client import ask_slurm
from hpctrain.slurm.cluster_output import NodeGroup, parse_node_groups, parse_record
from hpctrain.slurm.pmi import offered_pmi_types

_SINFO = ("sinfo", "--local", "--exact", "--noheader", "--format=%P|%D|%T|%c|%m|%G|%f")
_SHOW_CONFIG = ("scontrol", "show", "config")
# Plug-ins add their options to it: Pyxis --container-image.
_SRUN_HELP = ("srun", "--help")
_SHOW_PARTITIONS = ("scontrol", "--oneliner", "show", "partition")

COMMANDS = ("scontrol show config", "scontrol show partition", "sinfo", "srun --mpi=list")
"""Where the facts are from."""


@dataclass(frozen=True, kw_only=True)
class PartitionFacts:
    """What Slurm says of a partition."""

    name: str
    is_default: bool = False
    groups: Sequence[NodeGroup] = ()
    """Its nodes, equal ones together; empty where it has none."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """As ``scontrol show partition`` prints them."""

    @property
    def num_nodes(self) -> int:
        """Number of its nodes, in whatever state."""
        return sum(group.count for group in self.groups)

    @property
    def gpu_types(self) -> tuple[str, ...]:
        """Types of GPUs of its nodes; empty where Slurm has only their number."""
        found = {t for g in self.groups for t in re.findall(r"(?<![\w-])gpu:([^:,(]+):\d", g.gres)}
        return tuple(sorted(found))


@dataclass(frozen=True, kw_only=True)
class SiteFacts:
    """What Slurm says of a cluster, and the modules that are loaded where it was asked."""

    config: Mapping[str, str]
    """As ``scontrol show config`` prints it."""
    partition: PartitionFacts
    """The one that is described."""
    partitions: Sequence[PartitionFacts]
    """All of them."""
    pmi_types: frozenset[str] = frozenset()
    """Of ``srun --mpi=list``; empty where it does not answer."""
    modules: Sequence[str] = ()
    """Modules that are loaded in this shell, in their order."""
    containers: Sequence[str] = ()
    """Runtimes for ``Container(runtime=...)`` that this machine has."""


def query_site(partition: str | None) -> SiteFacts:
    """Return what Slurm says of the cluster of this machine.

    Not collective. Five questions to Slurm.

    Parameters
    ----------
    partition
        The one to describe; None is the default one.

    Raises
    ------
    ConfigError
        If there is no such partition, or it has no nodes.
    LaunchError
        If there is no Slurm here, or it does not answer.
    """
    if environ.find_program("scontrol") is None:
        raise LaunchError(
            "scontrol is not on PATH, so there is no Slurm to ask here. Load Slurm's module, or "
            "run this on a login node of the cluster."
        )
    try:
        config = parse_config(ask_slurm(_SHOW_CONFIG))
    except LaunchError as error:
        raise LaunchError(
            f"{error}\nRun this on a login node of the cluster, or try again if its controller is "
            f"away for a moment.",
            transient=error.transient,
        ) from error
    partitions = parse_partition_facts(ask_slurm(_SINFO), ask_slurm(_SHOW_PARTITIONS))
    try:
        pmi_types = offered_pmi_types()
    except LaunchError:
        pmi_types = frozenset()
    return SiteFacts(
        containers=_find_container_runtimes(),
        config=config,
        partition=_find_partition(partitions, partition),
        partitions=partitions,
        pmi_types=pmi_types,
        modules=tuple(filter(None, (environ.variable("LOADEDMODULES") or "").split(":"))),
    )


def _find_container_runtimes() -> tuple[str, ...]:
    """Return the container runtimes of this machine. One question to srun."""
    return tuple(
        name
        for name, runtime in RUNTIMES.items()
        if (
            environ.find_program(runtime.program) is not None
            if runtime.program
            else "--container-image" in _srun_help()
        )
    )


def _srun_help() -> str:
    try:
        return ask_slurm(_SRUN_HELP)
    except LaunchError:
        return ""


def _find_partition(partitions: Sequence[PartitionFacts], name: str | None) -> PartitionFacts:
    names = ", ".join(partition.name for partition in partitions if partition.groups)
    for partition in partitions:
        if partition.is_default if name is None else partition.name == name:
            if partition.groups:
                return partition
            raise ConfigError(
                f"partition {partition.name} has no nodes to describe. Give "
                f"SlurmConfig(partition=...): one of {names}."
            )
    if name is None:
        raise ConfigError(
            f"this cluster has no default partition. Give SlurmConfig(partition=...): one of "
            f"{names}."
        )
    raise ConfigError(
        f"SlurmConfig(partition={name!r}): this cluster has {names}. Use one of these."
    )


@cache
def find_cluster() -> str | None:
    """Return the name of the cluster whose controller is asked. Not collective.

    Asked once: outside of jobs no variable has it.

    Raises
    ------
    LaunchError
        If the controller does not answer.
    """
    return parse_config(ask_slurm(_SHOW_CONFIG)).get("ClusterName")


def parse_config(output: str) -> dict[str, str]:
    r"""Return what ``scontrol show config`` prints; the first of a name counts. Not collective.

    Examples
    --------
    >>> parse_config("ClusterName             = alps\nTmpFS                   = /tmp\n")
    {'ClusterName': 'alps', 'TmpFS': '/tmp'}
    """
    fields: dict[str, str] = {}
    for name, value in re.findall(r"^(\w+)[ \t]*=[ \t]*(.*?)[ \t]*$", output, re.MULTILINE):
        # Configurations of plug-ins come last, and have names of their own.
        fields.setdefault(name, value)
    return fields


def parse_partition_facts(nodes: str, records: str) -> tuple[PartitionFacts, ...]:
    r"""Return partitions from ``sinfo`` and ``scontrol --oneliner show partition``. Not collective.

    Parameters
    ----------
    nodes
        ``sinfo --noheader --format=%P|%D|%T|%c|%m|%G|%f``.
    records
        A line for each partition.

    Examples
    --------
    >>> facts = parse_partition_facts("gpu*|2|idle|64|512000|gpu:4|(null)\n", "")
    >>> facts[0].name, facts[0].is_default, facts[0].num_nodes
    ('gpu', True, 2)
    """
    fields = [parse_record(line) for line in records.splitlines()]
    by_name = {record.get("PartitionName", ""): record for record in fields}
    rows: dict[str, list[NodeGroup]] = {}
    default = ""
    for line in nodes.splitlines():
        name, _, rest = line.partition("|")
        # A star stands for the default; no name of a partition has one.
        if name.endswith("*"):
            name = default = name.rstrip("*")
        groups = rows.setdefault(name, [])
        # Of a partition without nodes there is one row, with "n/a" for their state.
        groups += [group for group in parse_node_groups(rest) if group.count]
    return tuple(
        PartitionFacts(
            name=name, is_default=name == default, groups=groups, fields=by_name.get(name, {})
        )
        for name, groups in rows.items()
    )
