"""Why a job waits, or why it ended: a verdict, the limit that it runs into, and what to do.

Asks Slurm two or three times: for the job, and for what its reason names. Works without accounting.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hpctrain.errors import LaunchError
from hpctrain.rundir.display import counted
from hpctrain.slurm.client import ask_slurm
from hpctrain.slurm.cluster_output import parse_node_reasons, parse_record
from hpctrain.slurm.ends import explain_end_of
from hpctrain.slurm.facts import query_limits
from hpctrain.slurm.job import find_job
from hpctrain.slurm.limits import Limit, find_limit, find_partition_limit, measured
from hpctrain.slurm.output import Job, parse_accounted, parse_waiting
from hpctrain.slurm.waiting import Verdict, look_up, step_of

_ACCOUNTED = "JobIDRaw,State,ExitCode,Reason,Partition,Account,QOS,Timelimit,NNodes,NodeList"
_MOST_NODES = 4
_HELD_STATES = ("REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD")
# The reason of a job that is held again, while its state is still COMPLETING.
_HELD_AGAIN = "job_requeued_in_held_state"
_QUEUED_STATES = ("REQUEUED", "REQUEUE_FED")


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """What becomes of a job, and why."""

    job: Job
    verdict: Verdict
    meaning: str
    details: Sequence[str] = ()
    """Limits, nodes and jobs that Slurm's reason is about, a line each."""
    step: str = ""
    """What a person has to do; empty where that is to wait."""

    @property
    def starts_at(self) -> float | None:
        """When Slurm expects it to start; None where it will not, or Slurm does not say yet."""
        return self.job.start_time if self.verdict is Verdict.WAITS else None


def explain_job(job_id: str, *, is_run: bool, cancel: str | None = None) -> Explanation:
    """Return what becomes of a job, and why.

    Not collective.

    Parameters
    ----------
    job_id
        Its number.
    is_run
        Whether it is hpctrain's: then fields of its configurations are named, else options of
        sbatch.
    cancel
        The command that cancels it; by default ``scancel``.

    Raises
    ------
    LaunchError
        If the controller does not answer, or neither it nor the accounting has the job.
    """
    job = find_job(job_id) or _find_accounted(job_id)
    if job.is_final:
        end = explain_end_of(job, is_run=is_run)
        return Explanation(job=job, verdict=Verdict.ENDED, meaning=end.meaning, step=end.step)
    if job.state == "SUSPENDED":
        meaning = "Slurm has suspended it; it continues when Slurm resumes it"
        return Explanation(job=job, verdict=Verdict.SUSPENDED, meaning=meaning)
    is_held_again = job.state == "COMPLETING" and job.reason == _HELD_AGAIN
    if is_held_again or job.state in _HELD_STATES:
        step = f"Look at its log, then release it: scontrol release {job.job_id}"
        meaning = "Slurm has queued it again, and holds it"
        return Explanation(job=job, verdict=Verdict.HELD, meaning=meaning, step=step)
    if job.state == "COMPLETING":
        meaning = "its script has ended, and its nodes are cleaned up"
        return Explanation(job=job, verdict=Verdict.ENDED, meaning=meaning)
    if job.state in _QUEUED_STATES:
        meaning = "Slurm is about to start it again"
        return Explanation(job=job, verdict=Verdict.WAITS, meaning=meaning)
    if not job.is_pending:
        return Explanation(job=job, verdict=Verdict.RUNNING, meaning="it has begun")
    return _explain_pending(job, is_run=is_run, cancel=cancel or f"scancel {job.job_id}")


def _explain_pending(job: Job, *, is_run: bool, cancel: str) -> Explanation:
    found = look_up(job.reason)
    step = step_of(found, job, cancel=cancel)
    if not is_run:
        step = step.replace("SlurmConfig(time=...)", "--time")
    answer = Explanation(job=job, verdict=found.verdict, meaning=found.meaning, step=step)
    if (limit := _find_limit(job)) is not None:
        return _with_limit(answer, limit, is_run=is_run, cancel=cancel)
    return replace(answer, details=_details(job))


def _with_limit(answer: Explanation, limit: Limit, *, is_run: bool, cancel: str) -> Explanation:
    answer = replace(answer, details=[limit.text])
    if not limit.is_beyond_job:
        return answer
    other = _ask_for(limit, is_run=is_run)
    step = f"Cancel it ({cancel}) and submit it with {other}"
    if limit.resource == "jobs":
        meaning = "the site has closed its account or QOS for jobs, so it never starts"
        step = f"Cancel it ({cancel}) and submit it with another account or QOS"
        return replace(answer, verdict=Verdict.NEVER, meaning=meaning, step=step)
    if limit.resource == "time":
        shorten = f"scontrol update JobId={answer.job.job_id} TimeLimit={limit.allowed}"
        step = f"Shorten it as it waits ({shorten}), or submit it with {other}"
    size = "less than a job has to" if limit.is_minimum else "more than one job can ever have"
    meaning = f"it asks for {size}, so it never starts"
    return replace(answer, verdict=Verdict.NEVER, meaning=meaning, step=step)


def _ask_for(limit: Limit, *, is_run: bool) -> str:
    """Return the fields or options to change, and to what."""
    if limit.resource == "time":
        return f"SlurmConfig(time='{limit.allowed}')" if is_run else f"--time={limit.allowed}"
    if limit.is_product:
        return "less time, or less of it" if not is_run else "a shorter SlurmConfig(time=...)"
    if is_run:
        fields = {"mem": "SlurmConfig(mem=...)", "node": "SlurmConfig(nodes=...)"}
        change = fields.get(limit.resource, "ScalingConfig(num_workers=...)")
    else:
        options = {"mem": "--mem", "node": "--nodes", "cpu": "--ntasks times --cpus-per-task"}
        change = options.get(limit.resource, "--gpus")
    size = "at least" if limit.is_minimum else "at most"
    return f"{size} {measured(limit.allowed, limit.resource)} ({change})"


def _find_limit(job: Job) -> Limit | None:
    """Return the limit that the reason names; None where it names none, or Slurm does not say."""
    if job.reason.startswith("Partition"):
        # A job in several partitions waits for the one that is named first.
        return find_partition_limit(job, _ask_record("partition", job.partition.split(",")[0]))
    if not re.match(r"QOS|Assoc|Max\w+PerAccount", job.reason):
        return None
    # Where the site hides them (PrivateData) there are none, and the reason alone has to do.
    facts = query_limits(
        user=job.user, partition=job.partition, account=job.account or None, qos=job.qos or None
    )
    return find_limit(job, facts.limits)


def _details(job: Job) -> list[str]:
    """Return what else Slurm says about what the reason names."""
    if job.reason.startswith("Dependency") and job.dependency:
        return [f"it depends on {job.dependency}"]
    if job.reason.startswith("PartitionDown") or job.reason.startswith("PartitionInactive"):
        names = job.partition.split(",")
        states = {name: _ask_record("partition", name).get("State", "") for name in names}
        return [f"partition {name!r} is {state}" for name, state in states.items() if state]
    if job.reason in ("Priority", "Resources"):
        return _place_in_queue(job)
    if nodes := re.search(r"Nodes:(\S+)", job.reason):
        return _say_why_down(nodes[1])
    if job.reason.startswith("Nodes_required"):
        return _say_why_down("")
    return []


def _place_in_queue(job: Job) -> list[str]:
    argv = ["squeue", "--local", "--noheader", "--states=PENDING", f"--partition={job.partition}"]
    try:
        waiting = parse_waiting(ask_slurm([*argv, "--format=%A|%Q"]))
    except LaunchError:
        return []
    mine = waiting.get(job.job_id)
    if mine is None:
        return []
    # A job that is held has the priority 0.
    able = [priority for priority in waiting.values() if priority > 0]
    before = sum(priority > mine for priority in able)
    if before == 0 and job.reason == "Priority":
        # The site hides the jobs of other users.
        return []
    return [
        f"of {counted(len(able), 'job')} waiting in partition {job.partition!r}, {before} "
        f"{'is' if before == 1 else 'are'} before it"
    ]


def _say_why_down(nodes: str) -> list[str]:
    argv = [
        "sinfo",
        "--local",
        "--noheader",
        "--list-reasons",
        "--format=%n|%T|%E",
        *([f"--nodes={nodes}"] if nodes else []),
    ]
    try:
        reasons = parse_node_reasons(ask_slurm(argv))
    except LaunchError:
        return []
    lines = [f"{node} is {state}: {reason}" for node, (state, reason) in reasons.items()]
    more = len(lines) - _MOST_NODES
    return [*lines[:_MOST_NODES], *([f"and {more} more"] if more > 0 else [])]


def _ask_record(kind: str, name: str) -> dict[str, str]:
    try:
        return parse_record(ask_slurm(["scontrol", "--oneliner", "show", kind, name]))
    except LaunchError:
        return {}


def _find_accounted(job_id: str) -> Job:
    """Return a job that the controller has forgotten, as the accounting database has it."""
    argv = ["sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={job_id}"]
    try:
        job = parse_accounted(ask_slurm([*argv, f"--format={_ACCOUNTED}"]))
    except LaunchError as error:
        if error.transient:
            raise
        raise LaunchError(
            f"Slurm has forgotten job {job_id} (it keeps jobs for MinJobAge after their end), and "
            f"there is no accounting here that could show it: {error}"
        ) from error
    if job is None:
        raise LaunchError(f"Slurm knows no job {job_id}, and its accounting has none either.")
    return job
