"""Why a job waits, in words: what Slurm's reason means, and what to do where it never ends."""

from __future__ import annotations

import enum
import re
from typing import NamedTuple

from hpctrain.slurm.output import Job

_NO_REASON = ("", "None", "(null)")
_ASK_FOR_LESS = "and ask for less, or use another partition, account or QOS"


class Verdict(enum.Enum):
    """What becomes of a job."""

    WAITS = "waits"
    """It starts by itself."""
    HELD = "held"
    """It starts when its owner releases it."""
    ADMIN = "admin"
    """It starts when an administrator changes something."""
    NEVER = "never"
    """It never starts as it was submitted."""
    RUNNING = "running"
    SUSPENDED = "suspended"
    ENDED = "ended"


class PendingReason(NamedTuple):
    """What a reason of a pending job means."""

    pattern: str
    """Beginnings of the reasons that squeue(1) lists under "JOB REASON CODES"."""
    verdict: Verdict
    meaning: str
    step: str = ""
    """What a person has to do where waiting does not help."""
    names: str = ""
    """Some of them, for the documentation; empty where the pattern is a list of names."""

    @property
    def examples(self) -> list[str]:
        """Reasons that it is about, or their beginnings."""
        return self.names.split() or self.pattern.split("|")


_W, _H, _A, _N = Verdict.WAITS, Verdict.HELD, Verdict.ADMIN, Verdict.NEVER
# The first that fits.
REASONS = (
    PendingReason("Priority", _W, "jobs with a higher priority are before it"),
    PendingReason("Resources", _W, "it is next, and waits until enough nodes are free"),
    PendingReason(
        "DependencyNeverSatisfied",
        _N,
        "a job that it depends on has ended in another way than it needs, so it never starts",
        "and submit it without that --dependency",
    ),
    PendingReason("Dependency", _W, "a job that it depends on has not ended"),
    PendingReason(
        "Nodes_required_for_job_are",
        _W,
        "nodes that it needs are down, drained, or kept for jobs of a partition with a higher "
        "priority",
        "if that lasts: 'sinfo -R' and 'scontrol show reservation' say why",
    ),
    PendingReason(
        "ReqNodeNotAvail(?!.*Unavailable)",
        _W,
        "nodes that it needs are in use, or reserved for others or for maintenance",
        "if that lasts: 'scontrol show reservation' says until when. A shorter "
        "SlurmConfig(time=...) may end before a reservation begins",
        "ReqNodeNotAvail",
    ),
    PendingReason(
        "ReqNodeNotAvail",
        _A,
        "nodes that it needs are down, drained, or reserved for others or for maintenance",
        "if that lasts: 'sinfo -R' and 'scontrol show reservation' say why. A shorter "
        "SlurmConfig(time=...) may end before a reservation begins",
        "ReqNodeNotAvail,_UnavailableNodes:node3",
    ),
    PendingReason(
        "BeginTime",
        _W,
        "it does not begin before a given time; a requeued job waits for some minutes",
    ),
    PendingReason(
        r"(Assoc|QOS)?Grp\w*(RunMinutes|Minutes)|QOSUsageThreshold",
        _A,
        "the time that its account or QOS may use is used up, or promised to others",
        "if no more is granted: 'sacctmgr show associations user=$USER' lists other accounts",
        "AssocGrpCPUMinutesLimit QOSGrpCPURunMinutesLimit AssocGrpBillingMinutes QOSUsageThreshold",
    ),
    PendingReason(
        r"(Assoc|QOS)(Max|Min)\w*(PerJob|PerNode|Minutes|WallDuration)|QOSMin|"
        "AssociationTimeLimit|QOSTimeLimit|AssociationResourceLimit|QOSResourceLimit",
        _N,
        "it asks for more than its account or QOS allows one job, so it never starts",
        _ASK_FOR_LESS,
        "QOSMaxWallDurationPerJobLimit QOSMaxCpuPerJobLimit AssocMaxNodePerJobLimit "
        "QOSMaxMemoryPerNode QOSMinCpuNotSatisfied",
    ),
    PendingReason("JobArrayTaskLimit", _W, "as many tasks of its array run as may run at a time"),
    PendingReason(
        r"(Assoc|QOS|Max|Association|Job).*(Limit|PerUser|PerAccount)|QOSGrp|AssocGrp|QOSMax|AssocMax",
        _W,
        "its user, account or QOS has as much running as may run at a time; it starts when some of "
        "it has ended",
        "",
        "QOSMaxJobsPerUserLimit QOSMaxGRESPerUser QOSGrpNodeLimit AssocMaxJobsLimit "
        "AssocGrpCpuLimit AssocGrpGRES",
    ),
    PendingReason(
        "PartitionNodeLimit|PartitionTimeLimit|PartitionConfig|BadConstraints|NodeAvail",
        _N,
        "it asks for what no node of its partition ever has, so it never starts",
        _ASK_FOR_LESS,
    ),
    PendingReason(
        "PartitionDown|PartitionInactive",
        _A,
        "its partition starts no jobs at the moment",
        "if that lasts: 'sinfo' lists other partitions",
    ),
    PendingReason(
        "InvalidAccount|InvalidQOS|AccountNotAllowed|QOSNotAllowed|ReservationDeleted",
        _N,
        "its account, QOS or reservation is no longer valid, so it never starts",
        "and submit it with another",
    ),
    PendingReason("JobHeldUser", _H, "it is held", "release it: scontrol release {job_id}"),
    PendingReason("JobHeldAdmin", _A, "an administrator holds it", "ask the site why"),
    PendingReason(
        "JobHoldMaxRequeue|JobHeld|launch_failed|job_requeued_in_held",
        _H,
        "Slurm holds it after a start that failed",
        "look at the log of the job, then release it: scontrol release {job_id}",
        "JobHoldMaxRequeue launch_failed_requeued_held job_requeued_in_held_state",
    ),
    PendingReason("Licenses", _W, "licenses that it needs are in use"),
    PendingReason("Reservation", _W, "its reservation has not begun"),
    PendingReason(
        "Cleaning|Prolog|NodeDown|SystemFailure|FrontEndDown",
        _W,
        "Slurm is about to start it again",
    ),
)
_NOT_KNOWN = PendingReason("", _W, "'man squeue' explains it under JOB REASON CODES")


def explain_wait(job: Job, *, run: str) -> str:
    """Return why a job waits, and what to do; empty if it does not, or Slurm gives no reason.

    Pure; not collective.

    Parameters
    ----------
    run
        The run directory.

    Examples
    --------
    >>> explain_wait(Job(job_id="7", state="PENDING", reason="Priority"), run="/runs/a")
    'waits (Priority): jobs with a higher priority are before it.'
    """
    if job.state == "SUSPENDED":
        return "is suspended by Slurm; it goes on when Slurm resumes it."
    if not job.is_pending or job.reason in _NO_REASON:
        return ""
    found = look_up(job.reason)
    step = step_of(found, job, cancel=f"hpctrain cancel {run}")
    text = f"waits ({job.reason}): {found.meaning}."
    return f"{text} {step}." if step else text


def look_up(reason: str) -> PendingReason:
    """Return what a reason means, "man squeue" where it is unknown.

    Pure; not collective.
    """
    for known in REASONS:
        if re.match(known.pattern, reason):
            return known
    return _NOT_KNOWN


def step_of(reason: PendingReason, job: Job, *, cancel: str) -> str:
    """Return what a person has to do, a sentence without its full stop, or nothing.

    Pure; not collective.

    Parameters
    ----------
    cancel
        The command that cancels the job.
    """
    step = reason.step
    if step.startswith("and "):
        step = f"cancel it ({cancel}) {step}"
    step = step.format(job_id=job.job_id) if "{job_id}" in step else step
    return step[:1].upper() + step[1:]
