"""What Slurm's commands print of a cluster: nodes, limits, accounts. Pure.

`hpctrain.slurm.partitions` reads what sinfo prints of partitions, and `hpctrain.slurm.output` what
they print of jobs. No other module knows their formats.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

# "gpu:4", "gpu:a100:4(S:0-1)", "craynetwork:4,gpu:4"; not "vgpu:8".
_GPUS = re.compile(r"(?<![\w-])gpu(?::([^:,(]+))?:(\d+)")


@dataclass(frozen=True, kw_only=True)
class NodeGroup:
    """Equal nodes of a partition."""

    count: int
    state: str
    """As sinfo's ``%T``: ``idle``, ``mixed``, ``drained*`` ..."""
    cpus: int
    mem_mib: int
    gres: str
    """As in ``gpu:a100:4(S:0-1)``."""
    features: tuple[str, ...] = ()

    @property
    def is_usable(self) -> bool:
        """Whether jobs can start on them, now or when others have ended."""
        return not re.search(r"down|drain|fail|maint|unknown|power(ed|ing)_down|\*", self.state)

    def gpus(self, kind: str | None) -> int:
        """Return how many GPUs each has, of a type or of any. Not collective."""
        found = _GPUS.findall(self.gres)
        return sum(int(count) for name, count in found if kind in (None, name))


@dataclass(frozen=True, kw_only=True)
class LimitRecord:
    """The limits of a QOS, or of an association: an account, or a user in it."""

    kind: str
    """``QOS`` or ``association``."""
    name: str
    """Of the QOS, or of the account."""
    user: str = ""
    """Of the association; empty for that of the whole account."""
    partition: str = ""
    """Of the association; empty where it is for all."""
    fields: Mapping[str, str] = field(default_factory=dict)

    def limit(self, name: str, resource: str = "") -> tuple[str, str] | None:
        """Return a limit and what is used of it, as Slurm writes them; None if it has none."""
        value = self.fields.get(name, "")
        if resource:
            value = parse_tres(value).get(resource, "")
        found = re.fullmatch(r"([^(]+)(?:\(([^)]*)\))?", value)
        return None if found is None or found[1] == "N" else (found[1], found[2] or "")


@dataclass(frozen=True, kw_only=True)
class Association:
    """An account that a user may use, in one partition or in all."""

    account: str
    partition: str = ""
    qos: tuple[str, ...] = ()
    default_qos: str = ""
    default_account: str = ""
    """The user's, of any of their associations."""


def parse_node_groups(output: str) -> list[NodeGroup]:
    r"""Return what ``sinfo --noheader --format=%D|%T|%c|%m|%G|%f`` prints. Not collective.

    Examples
    --------
    >>> parse_node_groups("4|idle|64|512000+|gpu:a100:4(S:0-1)|ib,a100\n")[0].gpus("a100")
    4
    """
    rows = [line.split("|", 5) for line in output.splitlines() if line.count("|") >= 5]
    return [
        NodeGroup(
            count=int(count),
            state=state,
            # "64+": some of them have more.
            cpus=int(cpus.rstrip("+")),
            mem_mib=int(memory.rstrip("+")),
            gres=gres,
            features=tuple(part for part in features.split(",") if part not in ("", "(null)")),
        )
        for count, state, cpus, memory, gres, features in rows
    ]


def parse_node_states(output: str) -> dict[str, set[str]]:
    """Return the state and flags of nodes from ``scontrol --oneliner show node``.

    Not collective.

    Examples
    --------
    >>> states = parse_node_states("NodeName=node3 Arch=x86_64 State=MIXED+NOT_RESPONDING Weight=1")
    >>> sorted(states["node3"])
    ['MIXED', 'NOT_RESPONDING']
    """
    states = {}
    for line in output.splitlines():
        fields = dict(re.findall(r"(?<!\S)(NodeName|State)=(\S+)", line))
        if len(fields) == 2:
            # Before Slurm 21.08 a star stood for NOT_RESPONDING.
            state = fields["State"].replace("*", "+NOT_RESPONDING")
            states[fields["NodeName"]] = set(state.split("+"))
    return states


def parse_cpus_per_core(output: str) -> dict[str, int]:
    """Return how many CPUs of Slurm are one core, from ``scontrol --oneliner show node``.

    Not collective.

    Examples
    --------
    >>> parse_cpus_per_core("NodeName=node3 CPUTot=8 State=IDLE ThreadsPerCore=2 TmpDisk=0")
    {'node3': 2}
    """
    cpus = {}
    for line in output.splitlines():
        fields = dict(re.findall(r"(?<!\S)(NodeName|ThreadsPerCore)=(\S+)", line))
        if fields.get("ThreadsPerCore", "0").isdigit() and "NodeName" in fields:
            cpus[fields["NodeName"]] = max(int(fields.get("ThreadsPerCore", "1")), 1)
    return cpus


def parse_node_reasons(output: str) -> dict[str, tuple[str, str]]:
    r"""Return state and reason that ``sinfo --list-reasons --format=%n|%T|%E`` prints, by node.

    Not collective.

    Examples
    --------
    >>> parse_node_reasons("node2|drained|new disk\n")
    {'node2': ('drained', 'new disk')}
    """
    rows = [line.split("|", 2) for line in output.splitlines() if line.count("|") >= 2]
    return {node: (state, reason) for node, state, reason in rows}


def parse_record(output: str) -> dict[str, str]:
    """Return the fields of one partition or node from ``scontrol --oneliner show ...``.

    Not collective. Values that hold spaces are cut there.

    Examples
    --------
    >>> parse_record("PartitionName=short AllowGroups=ALL MaxTime=00:02:00")["MaxTime"]
    '00:02:00'
    """
    return dict(re.findall(r"(?<!\S)([\w:/]+)=(\S*)", output))


def parse_limits(output: str, *, user: str) -> list[LimitRecord]:
    r"""Return the QOS and associations that ``scontrol show assoc_mgr`` prints.

    Not collective. Of the associations of users only those of `user`.

    Examples
    --------
    >>> output = "QOS=normal(1)\n    MaxWallPJ=60\n    GrpTRES=cpu=4(2),mem=N(0)\n"
    >>> parse_limits(output, user="me")[0].limit("GrpTRES", "cpu")
    ('4', '2')
    """
    records: list[LimitRecord] = []
    fields: dict[str, str] = {}
    is_of_user = True
    for line in output.splitlines():
        head = dict(re.findall(r"(\w+)=(\S*)", line))
        if line.startswith("QOS="):
            fields, is_of_user = {}, True
            name = head["QOS"].partition("(")[0]
            records.append(LimitRecord(kind="QOS", name=name, fields=fields))
        elif line.startswith("ClusterName="):
            fields, is_of_user = {}, True
            name, whose = head.get("Account", ""), head.get("UserName", "").partition("(")[0]
            if whose in ("", user):
                records.append(
                    LimitRecord(
                        kind="association",
                        name=name,
                        user=whose,
                        partition=head.get("Partition", ""),
                        fields=fields,
                    )
                )
        elif found := re.match(r"\s+\d+\(([^)]*)\)$", line.rstrip()):
            # Limits of a QOS for each user come last; how much of them is used differs.
            is_of_user = found[1] == user
        elif is_of_user:
            fields.update(head)
    return records


_QOS_FIELDS = {
    "MaxWallPJ": "MaxWall",
    "MaxTRESPJ": "MaxTRES",
    "MaxTRESPN": "MaxTRESPerNode",
    "MaxTRESPU": "MaxTRESPU",
    "MaxTRESPA": "MaxTRESPA",
    "MaxJobsPU": "MaxJobsPU",
    "MaxJobsPA": "MaxJobsPA",
    "GrpTRES": "GrpTRES",
    "GrpJobs": "GrpJobs",
    "GrpTRESRunMins": "GrpTRESRunMins",
    "MinTRESPJ": "MinTRES",
    "Flags": "Flags",
}
QOS_FORMAT = ",".join(["Name", *_QOS_FIELDS.values()])
"""Of ``sacctmgr show qos``, as `parse_qos` reads it."""


def parse_qos(output: str) -> list[LimitRecord]:
    r"""Return the QOS that ``sacctmgr --noheader --parsable2 show qos`` prints.

    Not collective. The controller's own records (`parse_limits`) have what is used, but limits of
    a user only once that user has had a job.

    Examples
    --------
    >>> record = parse_qos("brief|01:00:00|cpu=4||||||||||PartitionTimeLimit\n")[0]
    >>> record.limit("MaxTRESPJ", "cpu"), record.fields["Flags"]
    (('4', ''), 'PartitionTimeLimit')
    """
    rows = [line.split("|") for line in output.splitlines() if line.count("|") == len(_QOS_FIELDS)]
    return [
        LimitRecord(kind="QOS", name=name, fields=dict(zip(_QOS_FIELDS, values, strict=True)))
        for name, *values in rows
    ]


def parse_enforced(output: str) -> set[str]:
    """Return what of accounting is enforced, as ``scontrol show config`` prints it. Not collective.

    Examples
    --------
    >>> sorted(parse_enforced("AccountingStorageEnforce = associations,limits,qos"))
    ['associations', 'limits', 'qos']
    """
    found = re.search(r"^AccountingStorageEnforce\s*=\s*(\S+)", output, re.MULTILINE)
    return set(found[1].split(",")) if found else set()


def parse_associations(output: str, *, default_account: str) -> list[Association]:
    r"""Return what ``sacctmgr --noheader --parsable2 show associations`` prints.

    Not collective.

    Examples
    --------
    >>> parse_associations("physics||normal,long|normal\n", default_account="physics")[0].qos
    ('normal', 'long')
    """
    rows = [line.split("|") for line in output.splitlines() if line.count("|") == 3]
    return [
        Association(
            account=account,
            partition=partition,
            qos=tuple(filter(None, qos.split(","))),
            default_qos=default_qos,
            default_account=default_account,
        )
        for account, partition, qos, default_qos in rows
    ]


def parse_tres(text: str) -> dict[str, str]:
    """Return the resources in a list of Slurm's ("trackable resources"). Not collective.

    Examples
    --------
    >>> parse_tres("cpu=4,mem=8G,node=2,gres/gpu=4")["gres/gpu"]
    '4'
    """
    pairs = [pair.partition("=") for pair in text.split(",") if "=" in pair]
    return {name: amount for name, _, amount in pairs}


def count_gpus(gres: str) -> int:
    """Return how many GPUs a list of generic resources has. Not collective."""
    return sum(int(count) for _, count in _GPUS.findall(gres))
