"""A request against partition, nodes, account, QOS and reservation: what never starts. Pure.

``sbatch --test-only`` accepts what never starts: a time limit above the partition's, a partition
that is down, a limit of a QOS (measured with Slurm 22.05).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from hpctrain.doctor.finding import Finding, error, ok, remark, warning
from hpctrain.doctor.reservation import check_reservation
from hpctrain.slurm.cluster_output import NodeGroup
from hpctrain.slurm.facts import ClusterFacts
from hpctrain.slurm.limits import (
    Limit,
    find_exceeded,
    find_partition_limit,
    measured,
    with_parents,
)
from hpctrain.slurm.output import Job


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What a job asks for."""

    user: str
    partition: str
    account: str | None = None
    qos: str | None = None
    reservation: str | None = None
    constraint: str | None = None
    time: str = ""
    """As Slurm writes it: ``1-12:00:00``; empty for the partition's default."""
    nodes: int
    """At least."""
    cpus_per_node: int
    mem_mib_per_node: int | None = None
    gpus_per_node: int = 0
    gpu_type: str | None = None

    @property
    def job(self) -> Job:
        """The job that it would be, while it waits."""
        tres = {"cpu": str(self.nodes * self.cpus_per_node), "node": str(self.nodes)}
        if self.mem_mib_per_node is not None:
            tres["mem"] = f"{self.nodes * self.mem_mib_per_node}M"
        if self.gpus_per_node:
            tres["gres/gpu"] = str(self.nodes * self.gpus_per_node)
            if self.gpu_type is not None:
                tres[f"gres/gpu:{self.gpu_type}"] = tres["gres/gpu"]
        return Job(
            job_id="",
            state="PENDING",
            user=self.user,
            partition=self.partition,
            time_limit=self.time,
            num_nodes=self.nodes,
            tres=tres,
        )


def check_request(ask: Ask, facts: ClusterFacts, *, now: float) -> list[Finding]:
    """Return what of a request fits the cluster, and what never starts. Not collective.

    Parameters
    ----------
    ask
        The request.
    facts
        What Slurm says of what it names.
    now
        Seconds since the epoch.
    """
    return [
        *_check_partition(ask, facts),
        *_check_nodes(ask, facts.groups),
        *_check_account(ask, facts),
        *_check_limits(ask, facts),
        *_check_reservation(ask, facts, now),
    ]


def _check_partition(ask: Ask, facts: ClusterFacts) -> list[Finding]:
    name, partition = ask.partition, facts.partition
    if not partition:
        return [remark("partition", f"Slurm says nothing about partition {name!r}")]
    if (state := partition.get("State", "UP")) != "UP":
        return [
            error(
                "partition",
                f"partition {name!r} is {state}",
                why="jobs are accepted, and wait until the site opens it",
                step="SlurmConfig(partition=...): 'sinfo' lists others",
            )
        ]
    for what, mine, allowed, denied in (
        ("account", ask.account, "AllowAccounts", "DenyAccounts"),
        ("qos", ask.qos, "AllowQos", "DenyQos"),
    ):
        listed = partition.get(allowed, "ALL")
        refused = partition.get(denied, "").split(",")
        if mine is not None and (
            (listed != "ALL" and not _is_in(mine, listed.split(","))) or _is_in(mine, refused)
        ):
            return [
                error(
                    "partition",
                    f"partition {name!r} does not take {what} {mine!r}",
                    why="sbatch refuses the job",
                    step=f"SlurmConfig({what}=...): one of {listed}"
                    if listed != "ALL"
                    else f"SlurmConfig({what}=...): another one",
                )
            ]
    limit = find_partition_limit(ask.job, partition)
    if limit is not None and not _lifts(facts.qos_flags, limit):
        return [_beyond("partition", limit)]
    return [ok("partition", f"partition {name!r} is up, and takes {_describe(ask)}")]


def _is_in(name: str, names: Sequence[str]) -> bool:
    """Return whether an account or a QOS is among names; Slurm does not look at their case."""
    return name.casefold() in {each.casefold() for each in names}


def _lifts(qos_flags: frozenset[str], limit: Limit) -> bool:
    """Return whether a QOS lets jobs be beyond a limit of the partition."""
    if limit.resource == "time":
        return "PartitionTimeLimit" in qos_flags
    return ("PartitionMinNodes" if limit.is_minimum else "PartitionMaxNodes") in qos_flags


def _check_nodes(ask: Ask, groups: Sequence[NodeGroup]) -> list[Finding]:
    if not groups:
        return [remark("nodes", "Slurm lists no nodes of the partition")]
    kind = f"{ask.gpu_type} GPUs" if ask.gpu_type else "GPUs"
    for name, number, there in (
        ("CPUs", ask.cpus_per_node, [group.cpus for group in groups]),
        ("MiB of memory", ask.mem_mib_per_node or 0, [group.mem_mib for group in groups]),
        (kind, ask.gpus_per_node, [group.gpus(ask.gpu_type) for group in groups]),
    ):
        if max(there) < number:
            return [
                error(
                    "nodes",
                    f"{number} {name} on each node, but nodes of {ask.partition!r} have "
                    f"{max(there)} at most",
                    why="sbatch refuses the job, or it waits for ever",
                    step=_fewer(name),
                )
            ]
    fit = [group for group in groups if _fits(ask, group)]
    total = sum(group.count for group in fit)
    usable = sum(group.count for group in fit if group.is_usable)
    if total < ask.nodes:
        return [
            error(
                "nodes",
                f"{ask.nodes} nodes{_with_features(ask)}, but {total} of partition "
                f"{ask.partition!r} fit the request",
                why="it never starts",
                step="Ask for fewer workers, or less on each node; 'sinfo -o \"%D %c %m %G %f\"' "
                "lists what nodes have",
            )
        ]
    if usable < ask.nodes:
        return [
            warning(
                "nodes",
                f"{usable} of the {total} nodes that fit are up, and {ask.nodes} are needed",
                why="it waits until the site repairs some",
                step="'sinfo -R' says why they are down; ask for fewer nodes to start earlier",
            )
        ]
    idle = sum(group.count for group in fit if group.state.startswith("idle"))
    return [ok("nodes", f"{usable} nodes fit the request, {idle} of them idle")]


def _fits(ask: Ask, group: NodeGroup) -> bool:
    return (
        group.cpus >= ask.cpus_per_node
        and group.mem_mib >= (ask.mem_mib_per_node or 0)
        and group.gpus(ask.gpu_type) >= ask.gpus_per_node
        and _has_features(ask.constraint, group.features)
    )


def _has_features(constraint: str | None, features: Sequence[str]) -> bool:
    """Return whether nodes may have what a constraint names; yes where it is complicated."""
    if constraint is None or re.search(r"[\[\]()*!]", constraint):
        return True
    first, *rest = re.split(r"([&|])", constraint.replace(",", "&"))
    has = first in features
    # From left to right, without precedence.
    for operator, name in zip(rest[::2], rest[1::2], strict=True):
        has = has and name in features if operator == "&" else has or name in features
    return has


def _check_account(ask: Ask, facts: ClusterFacts) -> list[Finding]:
    associations = facts.associations
    if associations is None:
        return [remark("account", "there is no accounting here, or it does not answer")]
    if not associations:
        return [remark("account", f"accounting has no association of user {ask.user!r}")]
    names = sorted({association.account for association in associations})
    account = _account(ask, facts)
    mine = [
        association
        for association in associations
        if association.account == account and association.partition in ("", ask.partition)
    ]
    if not mine:
        what = f"account {account!r} is none of user {ask.user!r} in partition {ask.partition!r}"
        if facts.enforced is not None and "associations" not in facts.enforced:
            return [remark("account", f"{what}, which Slurm does not look at here")]
        return [
            error(
                "account",
                what,
                why="sbatch refuses the job",
                step=f"SlurmConfig(account=...): one of {', '.join(names)}",
            )
        ]
    allowed = sorted({qos for association in mine for qos in association.qos})
    if ask.qos is not None and not _is_in(ask.qos, allowed):
        what = f"QOS {ask.qos!r} is none of account {account!r}"
        if facts.enforced is not None and "qos" not in facts.enforced:
            return [remark("QOS", f"{what}, which Slurm does not look at here")]
        return [
            error(
                "QOS",
                what,
                why="sbatch refuses the job",
                step=f"SlurmConfig(qos=...): one of {', '.join(allowed) or 'none'}",
            )
        ]
    qos = f", QOS {ask.qos or mine[0].default_qos or 'default'!s}"
    return [ok("account", f"account {account!r}{qos}")]


def _check_limits(ask: Ask, facts: ClusterFacts) -> list[Finding]:
    if not facts.limits:
        return []
    findings = []
    for limit in find_exceeded(ask.job, facts.limits):
        if limit.is_beyond_job:
            findings.append(_beyond("limits", limit))
        else:
            findings.append(
                warning("limits", limit.text, why="it waits until other jobs have ended")
            )
    names = ", ".join(dict.fromkeys(f"{r.kind} {r.name!r}" for r in facts.limits))
    return findings or [ok("limits", f"within the limits of {names}")]


def _check_reservation(ask: Ask, facts: ClusterFacts, now: float) -> list[Finding]:
    if ask.reservation is None:
        return []
    return check_reservation(
        ask.reservation,
        facts.reservation,
        user=ask.user,
        accounts=with_parents(facts.records, _account(ask, facts)),
        nodes=ask.nodes,
        time=ask.time,
        now=now,
    )


def _account(ask: Ask, facts: ClusterFacts) -> str:
    """Return the account of the job, the user's default one if it names none; empty if unknown."""
    default = facts.associations[0].default_account if facts.associations else ""
    # Slurm stores them so.
    return (ask.account or default).lower()


def _beyond(check: str, limit: Limit) -> Finding:
    if limit.resource == "time":
        step = f"SlurmConfig(time='{limit.allowed}')"
    elif limit.is_product:
        step = "A shorter SlurmConfig(time=...), or a smaller ScalingConfig(num_workers=...)"
    elif limit.resource == "jobs":
        step = "Wait until some of your jobs have ended, or use another QOS or account"
    else:
        size = "at least" if limit.is_minimum else "at most"
        step = (
            f"ScalingConfig(num_workers=...) for {size} {measured(limit.allowed, limit.resource)}"
        )
    return error(check, limit.text, why="it never starts", step=step)


def _describe(ask: Ask) -> str:
    time = f" for {ask.time}" if ask.time else ""
    return f"{measured(str(ask.nodes), 'node')}{time}"


def _with_features(ask: Ask) -> str:
    return f" with {ask.constraint!r}" if ask.constraint else ""


def _fewer(name: str) -> str:
    if "GPU" in name:
        return (
            "ScalingConfig(accelerator_type=...) or fewer GPUs a worker; 'sinfo -o %G' lists them"
        )
    if "memory" in name:
        return "SlurmConfig(mem=...), or a smaller resources_per_worker={'memory': ...}"
    return "SlurmConfig(tasks_per_node=...), or a smaller resources_per_worker={'CPU': ...}"
