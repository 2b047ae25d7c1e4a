"""What follows when an attempt has ended before its time. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from hpctrain.config import FailureConfig
from hpctrain.errors import (
    HpctrainError,
    LaunchError,
    NodeLostError,
    RunStoppedError,
    TrainingFailedError,
    WorkerError,
)
from hpctrain.execute.stop_decision import StopKind, StopNotice
from hpctrain.printable import text_of
from hpctrain.rundir.display import one_line, shorten
from hpctrain.rundir.history import FailureKind, History
from hpctrain.slurm.output import Job

MAX_ATTEMPTS_WITHOUT_PROGRESS = 5
"""A run that fails so often in a row without a newer checkpoint is stopped, whatever budget is
left."""

_FIRST_DELAY_S = 0.5
_LONGEST_CAUSE = 300

# Slurm looks at time limits every 30 seconds, and may send its warning a minute early.
_SIGNAL_TOLERANCE_S = 90.0

# By which the clocks of a node and of Slurm's controller may differ.
_CLOCK_TOLERANCE_S = 10.0

_BUDGETS: Mapping[FailureKind, str] = {
    FailureKind.WORKER: "max_failures",
    FailureKind.START: "controller_failure_limit",
    FailureKind.PREEMPTION: "max_preemption_failures",
}


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Whether the run goes on."""

    restart: bool
    reason: str
    """For the ledger and the error message."""
    delay_s: float = 0.0
    """Seconds to wait before: what Slurm could not give may be there a little later."""
    number: int | None = None
    """Which failure of its kind it is; None if that kind costs no budget."""
    budget: int = -1
    """How many of its kind there may be; -1 without a limit."""


def classify_failure(error: BaseException | None) -> FailureKind | None:
    """Return what kind of failure ended an attempt; None if it is none, or ends the run.

    Not collective.
    """
    if isinstance(error, LaunchError):
        return FailureKind.START
    if isinstance(error, NodeLostError):
        return FailureKind.PREEMPTION
    if isinstance(error, TrainingFailedError) and not isinstance(error, RunStoppedError):
        return FailureKind.WORKER
    return None


def classify_attempt_end(
    error: BaseException | None, stop: StopNotice | None
) -> FailureKind | None:
    """Return what kind of failure ended an attempt of a run that was to stop, or was not.

    Not collective.

    Parameters
    ----------
    stop
        Why the run was to stop. Errors of ranks whose job ends are an effect of that end.
    """
    if stop is not None and isinstance(error, (TrainingFailedError, LaunchError)):
        return stop.kind.failure or classify_failure(error)
    return classify_failure(error)


def describe_cause(error: BaseException) -> str:
    """Return what ended an attempt, in one line. Not collective."""
    lines = [line for line in text_of(error).splitlines() if any(map(str.isalnum, line))]
    # What a launcher has printed begins in the next line.
    ends_open = len(lines) > 1 and lines[0].endswith(":")
    first_line = " ".join(lines[: 1 + ends_open])
    cause = first_line or type(error).__name__
    if isinstance(error, HpctrainError) and error.brief:
        cause = error.brief
    elif isinstance(error, LaunchError):
        cause = f"the ranks could not be started: {first_line}"
    return one_line(shorten(cause, _LONGEST_CAUSE))


def blame_nodes(lost: Mapping[str, str], error: WorkerError) -> NodeLostError:
    """Return the error of ranks as one of the nodes that were lost with them. Not collective.

    Parameters
    ----------
    lost
        Why each of them counts as lost, by its name.
    """
    losses = "; ".join(f"node {node} is lost: {reason}" for node, reason in lost.items())
    blamed = NodeLostError(
        f"{losses}. {error}",
        rank=error.rank,
        hostname=error.hostname,
        worker_failures=error.worker_failures,
    )
    blamed.brief = losses
    return blamed


def decide(kind: FailureKind, history: History, config: FailureConfig) -> Decision:
    """Return whether the run goes on after a failure.

    Not collective.

    Parameters
    ----------
    kind
        What ended the last attempt.
    history
        What has gone wrong so far, that failure included.
    config
        The budgets.
    """
    if history.without_progress >= MAX_ATTEMPTS_WITHOUT_PROGRESS:
        return Decision(
            restart=False,
            reason=f"{history.without_progress} attempts in a row ended without a newer "
            f"checkpoint, and a run that makes no progress is stopped whatever its budgets. Look "
            f"at why they ended (hpctrain status, logs/), or report a checkpoint earlier; fit() "
            f"with the same name tries again.",
        )
    if kind not in _BUDGETS:
        return Decision(restart=True, reason=f"the end of the job ({kind.value}) costs no budget")
    name = _BUDGETS[kind]
    budget = getattr(config, name)
    count = history.failures.get(kind, 0)
    delay_s = 0.0
    if kind is FailureKind.START:
        delay_s = _FIRST_DELAY_S * 2 ** max(0, history.without_progress - 1)
    if budget == -1:
        reason = f"{kind.value} failure {count}, without a limit"
        return Decision(restart=True, reason=reason, delay_s=delay_s, number=count)
    reason = f"{kind.value} failure {count} of {name}={budget}"
    return Decision(
        restart=count <= budget, reason=reason, delay_s=delay_s, number=count, budget=budget
    )


def interpret_signal(name: str, job: Job | None, *, now: float, notice_s: float) -> StopNotice:
    """Return what a signal that a run got from outside means.

    Not collective.

    Parameters
    ----------
    name
        ``SIGUSR2``, by which Slurm warns of the end, or ``SIGTERM``.
    job
        What Slurm reports of the job at this moment; None without an answer.
    now
        Seconds since the epoch.
    notice_s
        Seconds before the end at which Slurm is to warn.
    """
    if job is None:
        return StopNotice(kind=StopKind.PREEMPTION, why=f"it got {name}")
    if job.is_preempted:
        why = f"job {job.job_id} is preempted"
        return StopNotice(kind=StopKind.PREEMPTION, why=why, deadline=job.end_time)
    end = job.end_time
    if end is not None and end - now <= notice_s + _SIGNAL_TOLERANCE_S and job.is_running:
        why = f"the time limit of job {job.job_id} ends"
        return StopNotice(kind=StopKind.TIME_LIMIT, why=why, deadline=end)
    return StopNotice(kind=StopKind.PREEMPTION, why=f"job {job.job_id} got {name}")


class NextJob(Enum):
    """Which job runs next when the job of a run ends."""

    REQUEUE = "requeue"
    """Queue the same job again."""
    SUCCESSOR = "successor"
    """Submit another one."""
    LEAVE = "leave"
    """Do nothing: Slurm has queued the job again."""
    STOP = "stop"
    """Not by itself: a person decides."""


def choose_next_job(
    job: Job | None, notice: StopNotice, *, now: float, restarts: int, is_ours: bool, requeue: bool
) -> NextJob:
    """Return which job a run goes on in when its own is about to end.

    Not collective.

    Parameters
    ----------
    job
        What Slurm reports of the job, after the ranks have left; None outside of jobs.
    notice
        Why they left.
    now
        Seconds since the epoch.
    restarts
        How often the job had been started again when this process began.
    is_ours
        Whether hpctrain submitted the job. One that a person wrote is only queued again where Slurm
        is about to do so itself.
    requeue
        Whether the site lets jobs be requeued.
    """
    if job is None:
        return NextJob.STOP
    if job.restarts > restarts:
        return NextJob.LEAVE
    taken_away = notice.kind is StopKind.PREEMPTION and job.is_preempted
    if not job.is_running:
        # Slurm ends it, and has not queued it again: cancelled by a person, unless Slurm warned
        # before of a reason that has come about.
        ended = taken_away or _ends_at_limit(job, notice, now=now)
        return NextJob.SUCCESSOR if is_ours and ended else NextJob.STOP
    if job.is_batch and job.may_requeue and requeue and (is_ours or taken_away):
        return NextJob.REQUEUE
    return NextJob.SUCCESSOR if is_ours else NextJob.STOP


def _ends_at_limit(job: Job, notice: StopNotice, *, now: float) -> bool:
    """Return whether Slurm ends a job at its time limit; a person can cancel it shortly before.

    A node that fails shortly before ends it, too.
    """
    if notice.kind is not StopKind.TIME_LIMIT or job.state.startswith("CANCELLED"):
        return False
    # scontrol shows a job that ends as COMPLETING until all its nodes have answered.
    has_reason = job.reason in ("TimeLimit", "NodeDown")
    has_reason |= job.state.startswith(("TIMEOUT", "NODE_FAIL"))
    is_time = notice.deadline is not None and now >= notice.deadline - _CLOCK_TOLERANCE_S
    return has_reason or job.is_preempted or is_time
