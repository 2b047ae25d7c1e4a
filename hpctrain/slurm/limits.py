"""Which limit of a QOS, an association or a partition a pending job runs into. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hpctrain.rundir.display import counted
from hpctrain.slurm.cluster_output import LimitRecord
from hpctrain.slurm.output import Job

# As in "QOSMaxCpuPerUserLimit" and "AssocGrpCPURunMinutesLimit", of squeue(1). Those of a QOS for
# each account do not say QOS: "MaxCpuPerAccount".
_REASON = re.compile(
    r"(?P<kind>QOS|Assoc|(?=Max\w+PerAccount))(?P<scope>Grp|Max|Min)"
    r"(?P<what>cpu|mem(?:ory)?|node|gres|billing|jobs?|wall(?:duration)?)"
    r"(?P<minutes>runminutes|minutes)?(?P<per>perjob|pernode|peruser|peraccount|notsatisfied)?"
    r"(?:limit)?",
    re.IGNORECASE,
)
_PER = {"perjob": "PJ", "pernode": "PN", "peruser": "PU", "peraccount": "PA"}
_PER_WORDS = {"PJ": "a job", "PN": "a node", "PU": "each user", "PA": "each account"}
_UNITS = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3, "E": 1024.0**4}
_ONE = {"cpu": "CPU", "node": "node", "billing": "billing unit", "jobs": "job"}
_NAMES = {"mem": "a megabyte", **_ONE}


@dataclass(frozen=True, kw_only=True)
class Limit:
    """A limit that a job runs into."""

    text: str
    """The limit, what is used of it, and what the job asks for, in words."""
    resource: str
    """``time``, ``jobs``, or as in Slurm's TRES: ``cpu``, ``mem``, ``node``, ``gres/gpu``."""
    allowed: str
    """As Slurm writes it."""
    is_beyond_job: bool
    """Whether no job may ask for as much as this one."""
    is_minimum: bool = False
    is_product: bool = False
    """Whether it is one of a resource times its minutes."""


def has_limits(records: Iterable[LimitRecord]) -> bool:
    """Return whether one of some records sets a limit at all. Not collective."""
    return any(
        record.limit(name, "" if resource in ("time", "jobs") and "TRES" not in name else resource)
        for record in records
        for name, resource in _NAMES_OF_LIMITS
    )


def records_of(
    records: Iterable[LimitRecord],
    *,
    user: str,
    account: str | None,
    partition: str,
    qos: str | None,
    partition_qos: str | None,
) -> list[LimitRecord]:
    """Return the records that apply to a job, in the order in which Slurm looks at them.

    Not collective. That is the partition's QOS, the job's, the user's association, and those of the
    account and of its parents; the job's QOS comes first if it has the flag ``OverPartQOS``
    (https://slurm.schedmd.com/resource_limits.html).
    """
    every = list(records)
    of_qos = [
        next((r for r in every if r.kind == "QOS" and r.name == name), None)
        for name in (partition_qos, qos)
        if name is not None
    ]
    chosen = [record for record in of_qos if record is not None]
    if len(chosen) == 2 and "OverPartQOS" in chosen[1].fields.get("Flags", "").split(","):
        chosen.reverse()
    # Of one account in several partitions the user has several.
    own = [r for r in every if r.kind != "QOS" and (r.name, r.user) == (account, user) and r.user]
    own = [r for r in own if r.partition == partition] or [r for r in own if not r.partition]
    chosen += own[:1]
    of_accounts = {r.name: r for r in reversed(every) if r.kind != "QOS" and not r.user}
    names = with_parents(every, account or "")
    return chosen + [of_accounts[name] for name in names if name in of_accounts]


def with_parents(records: Iterable[LimitRecord], account: str) -> list[str]:
    """Return an account, its parent, and so on, as far as known; empty without an account.

    Not collective.
    """
    parents = {
        record.name: record.fields.get("ParentAccount", "").partition("(")[0]
        for record in records
        if record.kind != "QOS" and not record.user
    }
    found: list[str] = []
    while account and account not in found:
        found.append(account)
        account = parents.get(account, "")
    return found


def find_limit(job: Job, records: Sequence[LimitRecord]) -> Limit | None:
    """Return the limit that a job's reason names; None if none of the records has it.

    Not collective.

    Parameters
    ----------
    records
        Those that apply to it, in order (`records_of`).

    Examples
    --------
    >>> job = Job(
    ...     job_id="7", state="PENDING", reason="QOSMaxCpuPerUserLimit", tres={"cpu": "8"}
    ... )
    >>> record = LimitRecord(kind="QOS", name="small", fields={"MaxTRESPU": "cpu=4(2)"})
    >>> find_limit(job, [record]).text
    "QOS 'small': 4 CPUs for each user at a time, 2 of them in use. The job asks for 8"
    """
    found = _REASON.match(job.reason)
    if found is None:
        return None
    kind = "association" if found["kind"] == "Assoc" else "QOS"
    resource = _resource(found["what"].lower(), job)
    name = _limit_name(found, kind, resource)
    wanted = "" if resource in ("time", "jobs") and "TRES" not in name else resource
    limits = [
        (_described(job, record, name, resource, *value), value)
        for record in records
        if record.kind == kind and (value := record.limit(name, wanted))
    ]
    # Of an account and its parents each counts.
    reached = [limit for limit, value in limits if _is_beyond(job, limit, name, resource, *value)]
    return next(iter(reached), None) or next((limit for limit, _ in limits), None)


def find_exceeded(job: Job, records: Sequence[LimitRecord]) -> list[Limit]:
    """Return the limits that a job of its own is beyond, or that are used up now. Not collective.

    Parameters
    ----------
    job
        As it would be submitted.
    records
        Those that apply to it, in order (`records_of`): the first that sets a limit decides; but
        the limits of an account and of its parents count each, unless a QOS sets them.
    """
    exceeded = []
    for name, resource in _NAMES_OF_LIMITS:
        wanted = "" if resource in ("time", "jobs") and "TRES" not in name else resource
        having = [(r, value) for r in records if (value := r.limit(name, wanted)) is not None]
        is_shared = name.startswith("Grp") and having and having[0][0].kind != "QOS"
        for record, value in having if is_shared else having[:1]:
            limit = _described(job, record, name, resource, *value)
            if _is_beyond(job, limit, name, resource, *value):
                exceeded.append(limit)
    return exceeded


def _is_beyond(job: Job, limit: Limit, name: str, resource: str, allowed: str, used: str) -> bool:
    """Return whether a job is beyond a limit by itself, or beyond what is left of it."""
    if resource == "jobs":
        return _amount(used, "jobs") >= _amount(allowed, "jobs")
    asked = job.time_limit if resource == "time" else job.tres.get(resource, "")
    if not asked:
        return False
    size = minutes_of(asked) if resource == "time" else _amount(asked, resource)
    if "Mins" in name:
        size *= minutes_of(job.time_limit) if job.time_limit else 0.0
    if name.endswith("PN"):
        size /= max(job.num_nodes, 1)
    most = minutes_of(allowed) if resource == "time" else _amount(allowed, resource)
    if limit.is_minimum:
        return size < most
    left = most - (0.0 if name.endswith(("PJ", "PN")) or not used else _amount(used, resource))
    return size > left


_RESOURCES = ("cpu", "mem", "node", "gres/gpu")
# Of a job; of all jobs of a user, an account or a QOS together.
_NAMES_OF_LIMITS = (
    ("MaxWallPJ", "time"),
    *((name, r) for name in ("MaxTRESPJ", "MaxTRESPN", "MinTRESPJ") for r in _RESOURCES),
    *((name, r) for name in ("GrpTRES", "MaxTRESPU", "MaxTRESPA") for r in _RESOURCES),
    *((name, "jobs") for name in ("GrpJobs", "MaxJobs", "MaxJobsPU", "MaxJobsPA")),
    ("GrpTRESRunMins", "cpu"),
)


def find_partition_limit(job: Job, partition: Mapping[str, str]) -> Limit | None:
    """Return the limit of its partition that a job is beyond; None if it is beyond none.

    Not collective.

    Parameters
    ----------
    partition
        Its fields, as ``scontrol show partition`` prints them.
    """
    name = partition.get("PartitionName", job.partition)
    longest = partition.get("MaxTime", "UNLIMITED")
    if minutes_of(job.time_limit) > minutes_of(longest):
        text = f"partition {name!r}: a time limit of {longest} at most"
        return _beyond(text, "time", longest, job.time_limit)
    for field, what in (("MaxNodes", "for a job"), ("TotalNodes", "in all")):
        most = partition.get(field, "")
        if most.isdigit() and job.num_nodes > int(most):
            return _beyond(
                f"partition {name!r}: {measured(most, 'node')} {what}", "node", most, job.num_nodes
            )
    least = partition.get("MinNodes", "")
    if least.isdigit() and 0 < job.num_nodes < int(least):
        text = f"partition {name!r}: at least {measured(least, 'node')} for a job"
        return replace(_beyond(text, "node", least, job.num_nodes), is_minimum=True)
    return None


def _beyond(text: str, resource: str, allowed: str, asked: object) -> Limit:
    text = f"{text}. The job asks for {asked}"
    return Limit(text=text, resource=resource, allowed=allowed, is_beyond_job=True)


def _resource(what: str, job: Job) -> str:
    if what.startswith("wall"):
        return "time"
    if what.startswith("job"):
        return "jobs"
    if what == "gres":
        return next((name for name in job.tres if name.startswith("gres/")), "gres/gpu")
    return "mem" if what.startswith("mem") else what


def _limit_name(found: re.Match[str], kind: str, resource: str) -> str:
    scope, minutes = found["scope"].capitalize(), (found["minutes"] or "").lower()
    per = _PER.get((found["per"] or "").lower(), "")
    if scope == "Min":
        return "MinTRESPJ"
    if minutes:
        run = "Run" if minutes.startswith("run") else ""
        return f"GrpTRES{run}Mins" if scope == "Grp" else "MaxTRESMinsPJ"
    if resource == "time":
        return "GrpWall" if scope == "Grp" else "MaxWallPJ"
    if resource == "jobs":
        of_qos = f"MaxJobs{per or 'PU'}"
        return "GrpJobs" if scope == "Grp" else of_qos if kind == "QOS" else "MaxJobs"
    return "GrpTRES" if scope == "Grp" else f"MaxTRES{per or 'PJ'}"


def _described(
    job: Job, record: LimitRecord, name: str, resource: str, allowed: str, used: str
) -> Limit:
    per = name[-2:] if name[-2:] in _PER_WORDS else ""
    is_of_job = per in ("PJ", "PN")
    asked = job.time_limit if resource == "time" else job.tres.get(resource, "")
    allowed = _time(allowed) if resource == "time" else _megabytes(allowed, resource)
    each = f" for {_PER_WORDS[per]}" if per else ""
    if "Mins" in name:
        asked = f"{_amount(asked, resource) * minutes_of(job.time_limit):g}"
        what = f"{counted(allowed, 'minute')} of {_NAMES.get(resource, resource)}{each}"
        text = f"{what} {'of all that runs' if 'Run' in name else 'in all'}"
    elif name.startswith("MinTRES"):
        text = f"at least {measured(allowed, resource)} for a job"
    else:
        when = "at most" if is_of_job else "in all" if name == "GrpWall" else "at a time"
        text = f"{measured(allowed, resource)}{each} {when}"
    if used not in ("", "0") and not is_of_job:
        text += f", {_megabytes(used, resource)} of them in use"
    if asked:
        text += f". The job asks for {asked}"
    # A job that asks for less than a minimum is beyond it, too.
    beyond = is_of_job or name.startswith("Min")
    if resource == "jobs":
        # The site has closed it.
        beyond = allowed == "0"
    elif not beyond:
        beyond = _amount(asked, resource) > _amount(allowed, resource)
    return Limit(
        text=f"{_owner(record)}: {text}",
        resource=resource,
        allowed=allowed,
        is_beyond_job=beyond and name not in ("GrpTRESMins", "GrpWall"),
        is_minimum=name.startswith("Min"),
        is_product="Mins" in name,
    )


def _owner(record: LimitRecord) -> str:
    if record.kind == "QOS":
        return f"QOS {record.name!r}"
    account = f"account {record.name!r}"
    return f"user {record.user!r} in {account}" if record.user else account


def measured(amount: str, resource: str) -> str:
    """Return an amount of a resource in words. Pure; not collective.

    Examples
    --------
    >>> measured("1", "node"), measured("4", "gres/gpu"), measured("8G", "mem")
    ('1 node', '4 GPUs', '8G of memory')
    """
    if resource == "time":
        return amount
    if resource == "mem":
        return f"{amount} of memory"
    name = "GPU" if resource.startswith("gres/gpu") else _ONE.get(resource)
    return counted(amount, name) if name else f"{amount} of {resource}"


def _megabytes(amount: str, resource: str) -> str:
    return f"{amount}M" if resource == "mem" and amount.isdigit() else amount


def _amount(text: str, resource: str) -> float:
    if resource == "time":
        return minutes_of(text)
    found = re.match(r"([\d.]+)([KMGTPE]?)", text)
    if found is None:
        return 0.0
    return float(found[1]) * _UNITS.get(found[2], 1.0)


def _time(minutes: str) -> str:
    """Return minutes as Slurm writes times; a text that is one already as it is."""
    if not minutes.isdigit():
        return minutes
    hours, rest = divmod(int(minutes), 60)
    days, hours = divmod(hours, 24)
    return f"{f'{days}-' if days else ''}{hours:02}:{rest:02}:00"


def minutes_of(time: str) -> float:
    """Return the minutes of ``1-12:30:00``; infinity for UNLIMITED and what is not known.

    Pure; not collective.

    Examples
    --------
    >>> minutes_of("1-00:30:00")
    1470.0
    """
    found = re.fullmatch(r"(?:(\d+)-)?(\d+):(\d+):(\d+)", time)
    if found is None:
        return float(time) if time.isdigit() else 0.0 if not time else float("inf")
    days, hours, minutes, seconds = (int(number or 0) for number in found.groups())
    return days * 1440 + hours * 60 + minutes + seconds / 60
