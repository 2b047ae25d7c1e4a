"""A site profile from what Slurm says of a cluster, with how certain each value is. Pure."""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hpctrain.slurm.cluster_output import NodeGroup, parse_tres
from hpctrain.slurm.site_facts import COMMANDS, PartitionFacts, SiteFacts

_READ, _SEEN, _GUESSED = "read from Slurm", "seen by a job", "guessed"
_WIDTH = 100
_TABLES = ("directives", "environment")
# A node without RealMemory in slurm.conf has this much.
_NO_REAL_MEMORY_MIB = 1


@dataclass(frozen=True, kw_only=True)
class NodesSeen:
    """What a job has seen on nodes of a partition."""

    hosts: Sequence[str]
    interfaces: Sequence[str] = ()
    """Those that all of them have."""
    fast_interfaces: Sequence[str] = ()
    """Those of InfiniBand or Slingshot among them."""
    launcher: str = ""
    """The launcher that a run uses, such as ``srun --mpi=pmi2``; empty if there is none."""
    is_connected: bool = False
    """Whether it made one world of two ranks."""
    other_mpi: str | None = None
    """The ``SlurmConfig(mpi=...)`` of another launcher that did; None if none did."""


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """A value of the profile."""

    key: str
    value: str | int | bool | Sequence[str]
    certainty: str
    why: str
    table: str = ""


def render_profile(facts: SiteFacts, seen: NodesSeen | None, *, date: str) -> str:
    """Return a site profile as TOML.

    Not collective.

    Parameters
    ----------
    facts
        What Slurm says.
    seen
        What a job has seen; None without one.
    date
        The day on which both were found: ``2026-11-26``.
    """
    entries = list(_entries(facts, seen))
    lines = [*_header(facts, seen, date=date), ""]
    for table in ("", *_TABLES):
        chosen = [entry for entry in entries if entry.table == table]
        if table and chosen:
            lines += ["", f"[{table}]"]
        for entry in chosen:
            lines += _comment(f"{entry.certainty}: {entry.why}")
            lines.append(f"{entry.key} = {_to_toml(entry.value)}")
    return "\n".join(lines) + "\n"


def _header(facts: SiteFacts, seen: NodesSeen | None, *, date: str) -> Iterator[str]:
    config, partition = facts.config, facts.partition
    hosts = "" if seen is None else f"; a job on {', '.join(seen.hosts)}"
    yield from _comment(f"{_describe_site(facts)}: written by 'hpctrain site probe'.")
    yield from _comment(
        f"Source: {', '.join(COMMANDS)}; Slurm {config.get('SLURM_VERSION', 'unknown')}{hosts}."
    )
    yield from _comment(f"Checked: {date}.")
    yield from _comment(f'Certainty: above each value: "{_READ}", "{_SEEN}" or "{_GUESSED}".')
    yield "#"
    yield from _comment(
        f"The sizes of nodes are those of partition {partition.name}. For another one: "
        f"hpctrain site probe --partition PARTITION. Partitions, with * for the default one:"
    )
    for each in facts.partitions:
        yield f"#   {_one_line(_describe_partition(each))}"
    yield "#"
    for name, text in _remarks(facts, seen):
        yield from _comment(f"{name}: {text}.")
    yield from _comment(
        "Not probed: account_suffix, srun_args, gpu_srun_args; the centre's documentation has them."
    )


def _remarks(facts: SiteFacts, seen: NodesSeen | None) -> Iterator[tuple[str, str]]:
    """Return what the profile has no key for."""
    config, fields = facts.config, facts.partition.fields
    enforced = config.get("AccountingStorageEnforce", "none")
    if "associations" in enforced.split(","):
        yield (
            "Account",
            f"needed, since AccountingStorageEnforce={enforced}: give SlurmConfig(account=...), or "
            f"Slurm takes your default one; 'sacctmgr show associations user=$USER' lists yours",
        )
    else:
        yield "Account", f"not needed, since AccountingStorageEnforce={enforced}"
    yield (
        "Preemption",
        f"{config.get('PreemptType', 'unknown')}; of this partition "
        f"PreemptMode={fields.get('PreemptMode', 'unknown')}, "
        f"GraceTime={fields.get('GraceTime', 'unknown')}",
    )
    yield (
        "Local scratch",
        f"TmpFS={config.get('TmpFS', 'unknown')}, for SyncConfig(scratch_dir=...)",
    )
    yield (
        "MPI",
        f"srun --mpi=list has {', '.join(sorted(facts.pmi_types)) or 'not answered'}; "
        f"MpiDefault={config.get('MpiDefault', 'unknown')}",
    )
    if facts.containers:
        # Of this machine: compute nodes may load them as modules.
        yield (
            "Containers",
            f"{', '.join(facts.containers)} on this machine, for "
            f"SlurmConfig(container=Container(runtime=...))",
        )
    if types := facts.partition.gpu_types:
        yield "GPU types", f"{', '.join(types)}, for ScalingConfig(accelerator_type=...)"
    if seen is None:
        yield "Network interfaces", "not probed; 'hpctrain site probe --job' looks at nodes"
    else:
        shown = ", ".join(seen.interfaces) or "none in common"
        yield "Network interfaces", f"{shown}, {_SEEN}"


def _entries(facts: SiteFacts, seen: NodesSeen | None) -> Iterator[_Entry]:
    partition = facts.partition
    yield _Entry(
        key="description",
        value=_describe_site(facts),
        certainty=_READ,
        why="ClusterName and the partition",
    )
    yield from _of_nodes(facts, seen)
    yield _mpi(seen)
    requeue = facts.config.get("JobRequeue")
    if requeue in ("0", "1"):
        why = f"JobRequeue={requeue}"
        yield _Entry(key="requeue", value=requeue == "1", certainty=_READ, why=why)
    if all(group.mem_mib <= _NO_REAL_MEMORY_MIB for group in partition.groups):
        yield _Entry(
            key="skip_directives",
            value=["mem"],
            certainty=_GUESSED,
            why="nodes have no RealMemory, so a job that requests memory may be refused",
        )
    modules = [name for name in facts.modules if name.isprintable()]
    if modules:
        yield _Entry(
            key="setup",
            value=[f"module load {shlex.quote(name)}" for name in modules],
            certainty=_GUESSED,
            why="modules that were loaded in the shell of the probe; remove what runs do not need",
        )
    yield _Entry(
        key="partition",
        value=partition.name,
        certainty=_READ,
        why="the default one" if partition.is_default else "chosen with --partition",
        table="directives",
    )
    if seen is not None and seen.fast_interfaces:
        why = f"on {', '.join(seen.hosts)}"
        for key, names in (
            ("NCCL_SOCKET_IFNAME", seen.fast_interfaces),
            ("GLOO_SOCKET_IFNAME", seen.fast_interfaces[:1]),
        ):
            value = ",".join(names)
            yield _Entry(key=key, value=value, certainty=_SEEN, why=why, table="environment")


def _of_nodes(facts: SiteFacts, seen: NodesSeen | None) -> Iterator[_Entry]:
    """Return CPUs and GPUs of nodes, and how GPUs are requested."""
    groups, fields = facts.partition.groups, facts.partition.fields
    cpus, why = min(group.cpus for group in groups), _spread("CPUs", [g.cpus for g in groups])
    most = fields.get("MaxCPUsPerNode", "")
    if most.isdigit() and 0 < int(most) < cpus:
        cpus, why = int(most), "MaxCPUsPerNode of the partition"
    yield _Entry(key="cpus_per_node", value=cpus, certainty=_READ, why=why)
    with_gpus = [group for group in groups if group.gpus(None)]
    if not with_gpus:
        return
    gpus = min(group.gpus(None) for group in with_gpus)
    without = sum(group.count for group in groups if not group.gpus(None))
    yield _Entry(
        key="gpus_per_node",
        value=gpus,
        certainty=_GUESSED if without else _READ,
        why=f"nodes without GPUs do not count, {without} of {facts.partition.num_nodes}"
        if without
        else _spread("GPUs", [group.gpus(None) for group in with_gpus]),
    )
    share = parse_tres(fields.get("JobDefaults", "")).get("DefCpuPerGPU", "")
    if share.isdigit() and int(share):
        yield _Entry(key="cpus_per_gpu", value=int(share), certainty=_READ, why="DefCpuPerGPU")
    elif cpus >= gpus:
        why = "an equal share of the CPUs of a node"
        yield _Entry(key="cpus_per_gpu", value=cpus // gpus, certainty=_GUESSED, why=why)
    select = facts.config.get("SelectType", "unknown")
    # The options --gpus-* are those of select/cons_tres alone.
    request, is_taken = (
        ("gpus-per-node", "accepts") if "cons_tres" in select else ("gres", "may not accept")
    )
    yield _Entry(
        key="gpu_request",
        value=request,
        certainty=_GUESSED if seen is None else _SEEN,
        why=f"SelectType={select} {is_taken} --gpus-per-node"
        if seen is None
        else "Slurm gave it GPUs that it requested in this way",
    )


def _mpi(seen: NodesSeen | None) -> _Entry:
    value, certainty = "auto", _GUESSED
    why = "a run chooses what its MPI library supports, of what srun offers"
    if seen is not None and seen.is_connected:
        certainty, why = _SEEN, f"{seen.launcher} connected two ranks"
    elif seen is not None and seen.other_mpi is not None:
        value, certainty = seen.other_mpi, _SEEN
        why = f"it connected two ranks, and {seen.launcher or 'what auto chooses'} did not"
    elif seen is not None:
        why = "in a job no launcher connected two ranks; 'hpctrain doctor' explains why"
    return _Entry(key="mpi", value=value, certainty=certainty, why=why)


def _spread(what: str, numbers: Sequence[int]) -> str:
    found = sorted(set(numbers))
    if len(found) == 1:
        return f"{what} of every node"
    return f"the smallest of nodes with {', '.join(map(str, found))} {what}"


def _describe_site(facts: SiteFacts) -> str:
    name = facts.config.get("ClusterName", "unknown")
    return f"Slurm cluster {name}, partition {facts.partition.name}"


def _describe_partition(partition: PartitionFacts) -> str:
    counts: dict[str, int] = {}
    for group in partition.groups:
        shape = _describe_shape(group)
        counts[shape] = counts.get(shape, 0) + group.count
    nodes = "; ".join(f"{count} x {shape}" for shape, count in counts.items()) or "no nodes"
    words = [nodes, *_unusual(partition.fields)]
    return f"{partition.name}{'*' if partition.is_default else ''}: {', '.join(words)}"


def _describe_shape(group: NodeGroup) -> str:
    # Of "gpu:a100:4(S:0-1)" without the sockets.
    gres = re.sub(r"\([^)]*\)", "", group.gres).strip()
    return f"({group.cpus} CPUs, {group.mem_mib} MiB{f', {gres}' if gres else ''})"


def _unusual(fields: Mapping[str, str]) -> list[str]:
    """Return what is to know of a partition beside its nodes."""
    words = []
    if (state := fields.get("State", "UP")) != "UP":
        words.append(state)
    if limit := fields.get("MaxTime", ""):
        words.append(f"MaxTime={limit}")
    usual = {
        "AllowAccounts": "ALL",
        "AllowQos": "ALL",
        "QoS": "N/A",
        "OverSubscribe": "NO",
        "PreemptMode": "OFF",
    }
    words += [f"{n}={fields[n]}" for n, value in usual.items() if fields.get(n, value) != value]
    return words


def _comment(text: str) -> list[str]:
    return textwrap.wrap(
        _one_line(text),
        _WIDTH,
        initial_indent="# ",
        subsequent_indent="#   ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _one_line(text: str) -> str:
    """Return a text without control characters, which no comment of TOML may have."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _to_toml(value: str | int | bool | Sequence[str]) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        # Escapes of JSON are escapes of TOML; of control characters JSON leaves DEL as it is.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if len(value) < 2:
        return f"[{', '.join(map(_to_toml, value))}]"
    return "\n".join(["[", *(f"    {_to_toml(each)}," for each in value), "]"])
