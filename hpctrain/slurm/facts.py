"""What Slurm says of a request's partition, nodes, account, QOS and reservation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hpctrain import timeouts
from hpctrain.errors import LaunchError
from hpctrain.slurm.client import ask_slurm
from hpctrain.slurm.cluster_output import (
    QOS_FORMAT,
    Association,
    LimitRecord,
    NodeGroup,
    parse_associations,
    parse_enforced,
    parse_limits,
    parse_node_groups,
    parse_qos,
    parse_record,
)
from hpctrain.slurm.limits import records_of
from hpctrain.slurm.site_facts import parse_config

_SACCTMGR = ("sacctmgr", "--noheader", "--parsable2", "show")


@dataclass(frozen=True, kw_only=True)
class ClusterFacts:
    """What Slurm says of what a request names; empty where it says nothing."""

    cluster: str = ""
    """Its name."""
    enforced: frozenset[str] | None = None
    """What of accounting Slurm looks at, as ``associations`` and ``qos``; None if it does not
    say."""
    partition: dict[str, str] = field(default_factory=dict)
    """Fields of the partition."""
    groups: Sequence[NodeGroup] = ()
    """Its nodes, equal ones together."""
    associations: Sequence[Association] | None = None
    """Of the user; None where there is no accounting, or it does not answer."""
    records: Sequence[LimitRecord] = ()
    """Of all QOS and accounts that were asked for."""
    limits: Sequence[LimitRecord] = ()
    """Those of them that apply, in order (`hpctrain.slurm.limits.records_of`)."""
    reservation: dict[str, str] | None = None
    """Fields of the reservation; None if there is none of that name, or none was named."""

    @property
    def partition_qos(self) -> str | None:
        """The QOS that the partition itself has; None without one."""
        name = self.partition.get("QoS", "")
        return None if name in ("", "N/A") else name

    @property
    def qos_flags(self) -> frozenset[str]:
        """Flags of the QOS: ``PartitionTimeLimit`` lets jobs be longer than the partition does."""
        flags = [record.fields.get("Flags", "") for record in self.limits if record.kind == "QOS"]
        return frozenset(flag for text in flags for flag in text.split(","))


def query_facts(
    *, user: str, partition: str, account: str | None, qos: str | None, reservation: str | None
) -> ClusterFacts:
    """Return what Slurm says of what a request names.

    Not collective. Six or seven questions, two of them to the accounting database; one that is not
    answered, or that the site hides from its users, leaves its part empty.

    Parameters
    ----------
    user
        Whose associations count.
    partition
        Its name.
    account, qos
        As in the request; None is the user's default.
    reservation
        None if the request names none.
    """
    facts = query_limits(user=user, partition=partition, account=account, qos=qos)
    sinfo = [
        "sinfo",
        "--local",
        "--exact",
        "--noheader",
        f"--partition={partition}",
        "--format=%D|%T|%c|%m|%G|%f",
    ]
    record = None
    if reservation is not None:
        record = parse_record(_ask(["scontrol", "--oneliner", "show", "reservation", reservation]))
    associations = _query_associations(user, cluster=facts.cluster)
    if qos is None and associations:
        account = account or associations[0].default_account
        mine = next((a for a in associations if a.account == account), associations[0])
        qos = mine.default_qos or None
    names = [name for name in (facts.partition_qos, qos) if name is not None]
    known = {record.name: record for record in facts.records if record.kind == "QOS"}
    # Where the database does not answer, the controller's own will do.
    stored = {record.name: record for record in _query_qos(names)} or known
    records = [
        *[record for record in facts.records if record.kind != "QOS"],
        *[_merged(record, known.get(name)) for name, record in stored.items() if name in names],
    ]
    found = replace(
        facts,
        groups=parse_node_groups(_ask(sinfo)),
        associations=associations,
        records=records,
        reservation=record or None,
    )
    if not facts.limits:
        return found
    return _with_limits(found, user=user, partition=partition, account=account, qos=qos)


def query_limits(
    *,
    user: str,
    partition: str,
    account: str | None,
    qos: str | None,
    timeout_s: float = timeouts.SLURM_COMMAND_S,
) -> ClusterFacts:
    """Return what the controller itself says of partition, account and QOS.

    Not collective. Three questions, which it answers from its memory. Limits of a QOS for each user
    are among them only once the user has had a job.

    Parameters
    ----------
    timeout_s
        Seconds for each of them.
    """
    argv = ["scontrol", "--oneliner", "show", "partition", partition]
    fields = parse_record(_ask(argv, timeout_s=timeout_s))
    # All of the user's associations, and all accounts: the default one, and parents, are of them.
    argv = ["scontrol", "show", "assoc_mgr", "flags=assoc,qos", f"users={user}"]
    records = parse_limits(_ask(argv, timeout_s=timeout_s), user=user)
    config = _ask(["scontrol", "show", "config"], timeout_s=timeout_s)
    cluster = parse_config(config).get("ClusterName", "")
    enforced = frozenset(parse_enforced(config))
    facts = ClusterFacts(
        cluster=cluster,
        enforced=enforced if config else None,
        partition=fields,
        records=records,
    )
    if "limits" not in enforced and "safe" not in enforced:
        # The site keeps them, and Slurm does not look at them.
        return facts
    return _with_limits(facts, user=user, partition=partition, account=account, qos=qos)


def _with_limits(
    facts: ClusterFacts, *, user: str, partition: str, account: str | None, qos: str | None
) -> ClusterFacts:
    """Return facts with those of their records that apply."""
    limits = records_of(
        facts.records,
        user=user,
        account=account or _default_account(facts.records),
        partition=partition,
        qos=qos,
        partition_qos=facts.partition_qos,
    )
    return replace(facts, limits=limits)


def _default_account(records: Sequence[LimitRecord]) -> str | None:
    own = [record.name for record in records if record.fields.get("DefAssoc") == "Yes"]
    return own[0] if own else None


def _merged(record: LimitRecord, used: LimitRecord | None) -> LimitRecord:
    """Return a QOS of the database with what the controller says is used of it."""
    if used is None:
        return record
    fields = {name: value for name, value in used.fields.items() if value}
    return replace(record, fields={**record.fields, **fields})


def _query_qos(names: Sequence[str]) -> list[LimitRecord]:
    if not names:
        return []
    return parse_qos(_ask([*_SACCTMGR, "qos", f"name={','.join(names)}", f"format={QOS_FORMAT}"]))


def _query_associations(user: str, *, cluster: str) -> list[Association] | None:
    # A database may be that of several clusters.
    whose = [f"user={user}", *([f"cluster={cluster}"] if cluster else [])]
    try:
        printed = ask_slurm(
            [*_SACCTMGR, "associations", *whose, "format=Account,Partition,QOS,DefaultQOS"]
        )
        default = ask_slurm([*_SACCTMGR, "user", user, "format=DefaultAccount"])
    except LaunchError:
        return None
    return parse_associations(printed, default_account=default.strip())


def _ask(argv: Sequence[str], *, timeout_s: float = timeouts.SLURM_COMMAND_S) -> str:
    try:
        return ask_slurm(argv, timeout_s=timeout_s)
    except LaunchError:
        return ""
