"""Why a job waits, in words: what Slurm's reason means, and what to do where it never ends."""

from __future__ import annotations

import re

from hpctrain.slurm.output import Job

_NO_REASON = ("", "None", "(null)")
_ASK_FOR_LESS = "and ask for less, or use another partition, account or QOS"
# Beginnings of the reasons that squeue(1) lists under "JOB REASON CODES", the first that fits; what
# they mean; and what a person has to do where waiting does not help.
_REASONS: tuple[tuple[str, str, str], ...] = (
    ("Priority", "jobs with a higher priority are before it", ""),
    ("Resources", "it is next, and waits until enough nodes are free", ""),
    (
        "DependencyNeverSatisfied",
        "a job that it depends on has ended in another way than it needs, so it never starts",
        "and submit it without that --dependency",
    ),
    ("Dependency", "a job that it depends on has not ended", ""),
    (
        "ReqNodeNotAvail|Nodes_required_for_job_are",
        "nodes that it needs are down, drained, or reserved for others or for maintenance",
        "if that lasts: 'sinfo -R' and 'scontrol show reservation' say why. A shorter "
        "SlurmConfig(time=...) may end before a reservation begins",
    ),
    (
        "BeginTime",
        "it does not begin before a given time; a requeued job waits for some minutes",
        "",
    ),
    (
        r"(Assoc|QOS)?Grp\w*(RunMinutes|Minutes)|QOSUsageThreshold",
        "the time that its account or QOS may use is used up, or promised to others",
        "if no more is granted: 'sacctmgr show associations user=$USER' lists other accounts",
    ),
    (
        r"(Assoc|QOS)(Max|Min)\w*(PerJob|PerNode|Minutes|WallDuration)|QOSMin|"
        "AssociationTimeLimit|QOSTimeLimit|AssociationResourceLimit|QOSResourceLimit",
        "it asks for more than its account or QOS allows one job, so it never starts",
        _ASK_FOR_LESS,
    ),
    (
        r"(Assoc|QOS|Max|Association|Job).*(Limit|PerUser|PerAccount)|QOSGrp|AssocGrp|QOSMax|AssocMax",
        "its user, account or QOS has as much running as may run at a time; it starts when some of "
        "it has ended",
        "",
    ),
    (
        "PartitionNodeLimit|PartitionTimeLimit|BadConstraints|NodeAvail",
        "it asks for what no node of its partition ever has, so it never starts",
        _ASK_FOR_LESS,
    ),
    (
        "PartitionDown|PartitionInactive",
        "its partition starts no jobs at the moment",
        "if that lasts: 'sinfo' lists other partitions",
    ),
    (
        "InvalidAccount|InvalidQOS|AccountNotAllowed|QOSNotAllowed|ReservationDeleted",
        "its account, QOS or reservation is no longer valid, so it never starts",
        "and submit it with another",
    ),
    ("JobHeldUser", "it is held", "release it: scontrol release {job_id}"),
    ("JobHeldAdmin", "an administrator holds it", "ask the site why"),
    (
        "JobHoldMaxRequeue|JobHeld|launch_failed|job_requeued_in_held",
        "Slurm holds it after a start that failed",
        "look at the log of the job, then release it: scontrol release {job_id}",
    ),
    ("Licenses", "licenses that it needs are in use", ""),
    ("Reservation", "its reservation has not begun", ""),
    ("Cleaning|Prolog|NodeDown|SystemFailure|FrontEndDown", "Slurm is about to start it again", ""),
)


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
    if job.state != "PENDING" or job.reason in _NO_REASON:
        return ""
    meaning, step = _look_up(job.reason)
    if step.startswith("and "):
        step = f"cancel it (hpctrain cancel {run}) {step}"
    text = f"waits ({job.reason}): {meaning}." if meaning else f"waits ({job.reason})."
    step = step.format(job_id=job.job_id) if "{job_id}" in step else step
    return f"{text} {step[0].upper()}{step[1:]}." if step else text


def _look_up(reason: str) -> tuple[str, str]:
    for pattern, meaning, step in _REASONS:
        if re.match(pattern, reason):
            return meaning, step
    return "'man squeue' explains it under JOB REASON CODES", ""
