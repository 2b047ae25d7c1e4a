"""How a run goes on when its job cannot: what Slurm says of the job, requeue, successor.

The one module that acts on the scheduler from inside a job. What is to be done is decided elsewhere
(`hpctrain.execute.failure_policy.choose_continuation`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from hpctrain import environ
from hpctrain.errors import LaunchError
from hpctrain.execute.slurm_command import is_passing, run_slurm
from hpctrain.rundir.ledger import append_event, read_events
from hpctrain.rundir.paths import RunPaths

T = TypeVar("T")

_RETRY_INTERVAL_S = 2.0
_SLURM_TIMEOUT_S = 10.0
# sbatch has returned long before: this is for a process that died between sbatch and the ledger.
_OWNER_PATIENCE_S = 60.0


class Ownership(Enum):
    """Whether a job that begins owns the run that it was submitted for."""

    MINE = "this job"
    OTHERS = "another job"
    OVER = "nobody: it is over"
    UNDECIDED = "not written down yet"


@dataclass(frozen=True, kw_only=True)
class JobTerms:
    """What Slurm says of a job, as far as it matters for going on."""

    job_id: str
    is_running: bool
    """Whether it runs and will run on; False as soon as Slurm ends it."""
    restarts: int
    """How often it was started again; counts as soon as it is requeued."""
    may_requeue: bool
    is_batch: bool
    """Whether it has a batch script that would run again."""
    is_preempted: bool
    end_time: float | None
    """Seconds since the epoch; None where it has no limit."""


def read_job_terms(*, patience_s: float) -> JobTerms | None:
    """Return what Slurm says of the job of this process; None where it is in none.

    Not collective. Asks again while the controller is away.

    Raises
    ------
    LaunchError
        If the controller does not answer within `patience_s`.
    """
    job_id = environ.variable("SLURM_JOB_ID")
    if job_id is None:
        return None
    argv = ["scontrol", "--oneliner", "show", "job", job_id]
    return _insist(lambda: parse_job_terms(_run(argv)), patience_s=patience_s)


def parse_job_terms(output: str) -> JobTerms:
    """Return the terms from the output of ``scontrol --oneliner show job``. Pure; not collective.

    Raises
    ------
    LaunchError
        If there is no job in it.
    """
    fields = dict(re.findall(r"(\w+)=(\S*)", output))
    if "JobId" not in fields:
        raise LaunchError(f"scontrol show job: no job in {output.strip()[:200]!r}.", transient=True)
    return JobTerms(
        job_id=fields["JobId"],
        is_running=fields["JobState"] == "RUNNING",
        restarts=int(fields.get("Restarts", 0)),
        may_requeue=fields.get("Requeue") == "1",
        is_batch=fields.get("BatchFlag") == "1",
        is_preempted=fields.get("PreemptTime", "None") not in ("None", ""),
        end_time=_epoch(fields.get("EndTime", "")),
    )


def requeue(job_id: str, *, patience_s: float) -> None:
    """Let Slurm queue the job of this process again. Slurm ends this process soon afterwards.

    Not collective. What has to survive must be written down before.

    Raises
    ------
    LaunchError
        If Slurm refuses, or its controller does not answer within `patience_s`.
    """
    _insist(lambda: _run(["scontrol", "requeue", job_id], may_die=True), patience_s=patience_s)


def submit_successor(paths: RunPaths, *, patience_s: float) -> str:
    """Submit the run's batch script again, as another job; return its id. Not collective.

    Between the two entries in the ledger, ``handing-over`` and ``successor``, the new job may have
    begun: it then waits for the second one, and owns the run if that does not come.

    Raises
    ------
    LaunchError
        If Slurm refuses, or its controller does not answer within `patience_s`.
    """
    job_id = environ.variable("SLURM_JOB_ID")
    append_event(paths, "handing-over", job_id=job_id)
    argv = ["sbatch", "--parsable", str(paths.batch_script)]
    # Of this job's variables sbatch would take some for options, and pass on the others.
    environment = environ.without_job_variables(environ.environment())
    answer = _insist(lambda: _run(argv, environment=environment), patience_s=patience_s)
    successor = answer.strip().partition(";")[0]
    append_event(paths, "successor", job_id=successor, after=job_id)
    return successor


def await_ownership(paths: RunPaths, *, patience_s: float = _OWNER_PATIENCE_S) -> Ownership:
    """Return whether the job of this process owns the run. Not collective.

    Parameters
    ----------
    paths
        The run directory.
    patience_s
        Seconds to wait for an entry in the ledger that somebody is about to make.
    """
    job_id = environ.variable("SLURM_JOB_ID")
    assert job_id is not None
    deadline = time.monotonic() + patience_s
    while True:
        verdict = judge_ownership(read_events(paths), job_id)
        if verdict is not Ownership.UNDECIDED:
            return verdict
        if time.monotonic() > deadline:
            # Whoever submitted this job died before it could say so. Nobody else is there.
            append_event(paths, "successor", job_id=job_id, after=None)
            return Ownership.MINE
        time.sleep(0.1)


def judge_ownership(events: Iterable[Mapping[str, Any]], job_id: str) -> Ownership:
    """Return whether a job that begins owns its run. Pure; not collective.

    The last job that the ledger says was submitted does, until the run has ended.
    """
    owner: str | None = None
    is_settled = is_over = False
    for event in events:
        name = event["event"]
        if name == "fit":
            owner, is_settled, is_over = None, False, False
        elif name == "handing-over":
            is_settled = False
        elif name in ("submitted", "successor"):
            owner, is_settled = event["job_id"], True
        elif name == "run-ended":
            is_over = True
    if is_over:
        return Ownership.OVER
    if owner == job_id:
        return Ownership.MINE
    return Ownership.OTHERS if is_settled else Ownership.UNDECIDED


def _run(
    argv: Sequence[str], *, environment: Mapping[str, str] | None = None, may_die: bool = False
) -> str:
    answer = run_slurm(argv, timeout_s=_SLURM_TIMEOUT_S, environment=environment)
    # Slurm ends the job so quickly that the command that asked for it dies with it.
    if answer.returncode != 0 and not (may_die and answer.returncode < 0):
        said = (answer.stderr + answer.stdout).strip()
        raise LaunchError(f"{Path(argv[0]).name}: {said}", transient=is_passing(said))
    return answer.stdout


def _insist(act: Callable[[], T], *, patience_s: float) -> T:
    """Return what `act` returns; call it again while Slurm's controller is away."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return act()
        except LaunchError as error:
            if not error.transient or time.monotonic() > deadline:
                raise
        time.sleep(_RETRY_INTERVAL_S)


def _epoch(text: str) -> float | None:
    try:
        # In the time zone of this process, like every time that Slurm's commands print.
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return None
