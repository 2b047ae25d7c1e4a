"""What ``fit()`` does when the run is there already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from hpctrain import environ
from hpctrain.config import EXISTING_POLICIES, ExistingPolicy, RunConfig
from hpctrain.errors import ConfigError, DamagedFileError
from hpctrain.launch.changes import find_changes
from hpctrain.launch.life import LifeTest
from hpctrain.plan.spec import RunSpec
from hpctrain.rundir.ledger import read_events
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.plan import require_plan
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus, read_status

_RESTART = (
    "existing='restart' (in RunConfig, hpctrain run --existing restart, or "
    "HPCTRAIN_EXISTING=restart) moves it aside and begins anew"
)


class Existing(Enum):
    """What ``fit()`` does."""

    NEW = "new"
    FOLLOW = "follow"
    RESUME = "resume"
    FINISHED = "finished"
    RESTART = "restart"

    @property
    def begins(self) -> bool:
        """Whether this ``fit()`` is the one that runs the run."""
        return self in (Existing.NEW, Existing.RESUME)


def decide_on_existing(
    paths: RunPaths,
    spec: RunSpec,
    life: LifeTest,
    policy: ExistingPolicy = "auto",
) -> tuple[Existing, list[str]]:
    """Return what to do, and what has changed since the run was begun.

    Not collective.

    ============= ================= ==========================================
    state         the same spec     another spec
    ============= ================= ==========================================
    live          follow            ConfigError
    dead, failed  resume            resume if trainer and backend are the same
    finished      stored result     ConfigError
    ============= ================= ==========================================

    Where Slurm has started this job again, its script goes on as it began, whatever the policy: a
    run that it has finished is finished, although a module was edited since.

    Parameters
    ----------
    life
        Of the run. What it has seen before counts, so that a second look need not wait.
    policy
        As in ``RunConfig(existing=...)``. "resume" resumes a finished run with another spec too;
        "restart" begins anew whatever there is, unless that is live; "error" accepts no run.

    Raises
    ------
    ConfigError
        As in the table.
    """
    status = read_status(paths)
    if status is None:
        return Existing.NEW, []
    try:
        plan = require_plan(paths)
        changes = find_changes(paths, plan, spec)
    except DamagedFileError as error:
        if policy != "restart":
            raise DamagedFileError(f"{error}\nOr: {_RESTART}.") from error
        plan, changes = {}, [paths.plan.name]
    is_again = was_begun_by_this_job(read_events(paths))
    if is_again:
        policy = "auto"
    run = _name(paths)
    if policy == "error":
        raise ConfigError(
            f"{run} is there already ({status.state.value}), and RunConfig(existing='error') "
            f"accepts none. Choose another RunConfig(name=...), or {_RESTART}."
        )
    if life.watch():
        if not changes and policy != "restart":
            return Existing.FOLLOW, []
        raise ConfigError(_explain_running(paths, status, policy, changes))
    # It may have ended while it was watched.
    status = read_status(paths) or status
    if policy == "restart":
        return Existing.RESTART, changes
    if status.state is RunState.FINISHED:
        if is_again or not changes:
            return Existing.FINISHED, changes
        if policy != "resume":
            raise ConfigError(
                f"{run} is finished, and this fit() asks for something else{_listed(changes)}\n"
                f"To keep it, choose another RunConfig(name=...), with resume_from_checkpoint= to "
                f"begin where it ended.\n"
                f"Or: {_RESTART}; existing='resume' goes on from its last checkpoint."
            )
    for what, now in (("trainer", spec.trainer), ("backend", spec.backend)):
        if plan[what] != now:
            raise ConfigError(
                f"{run} belongs to {what} {plan[what]}, and this fit() has {now}. Choose another "
                f"RunConfig(name=...), or {_RESTART}."
            )
    return Existing.RESUME, changes


def _name(paths: RunPaths) -> str:
    return f"run {paths.root.name!r} in {paths.root.parent}"


def _explain_running(
    paths: RunPaths, status: RunStatus, policy: ExistingPolicy, changes: list[str]
) -> str:
    """Return why a run that is running cannot be followed."""
    where = (
        f"job {status.job_id}"
        if status.job_id
        else f"process {status.owner_pid} on {status.owner_host}"
    )
    what = "and this fit() asks for something else" + _listed(changes)
    if policy == "restart":
        what = "and only a run that is over can be begun anew (existing='restart')."
    return (
        f"{_name(paths)} is running ({where}), {what}\n"
        f"Choose another RunConfig(name=...); follow it: hpctrain attach {paths.root}; or end "
        f"it first: hpctrain cancel {paths.root}"
    )


def policy_of(run_config: RunConfig) -> ExistingPolicy:
    """Return what to do with a run that exists: ``HPCTRAIN_EXISTING`` wins over the RunConfig.

    Not collective.

    Raises
    ------
    ConfigError
        If the variable has another value.
    """
    policy = environ.requested_existing() or run_config.existing
    if policy not in EXISTING_POLICIES:
        raise ConfigError(
            f"HPCTRAIN_EXISTING={policy!r}. One of {', '.join(map(repr, EXISTING_POLICIES))} is "
            f"needed."
        )
    return policy


def was_begun_by_this_job(events: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether Slurm has started this job again, and a run's last ``fit()`` was in it.

    Not collective.

    Parameters
    ----------
    events
        Of the run's ledger.
    """
    job_id = environ.variable("SLURM_JOB_ID")
    if job_id is None or environ.restart_count() == 0:
        return False
    fits = [event for event in events if event["event"] == "fit"]
    return bool(fits) and fits[-1]["job_id"] == job_id


def _listed(changes: list[str]) -> str:
    return ":" + "".join(f"\n  {change}" for change in changes)
