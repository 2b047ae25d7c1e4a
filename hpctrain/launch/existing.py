"""What ``fit()`` does when the run is there already."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from enum import Enum
from typing import Any

from hpctrain import environ
from hpctrain.errors import ConfigError
from hpctrain.execute.process import process_start_time
from hpctrain.plan.spec import RunSpec
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.status import RunState, RunStatus, read_status

# Executors write their status every two seconds.
_SILENCE_MEANS_DEAD_S = 60.0


class Existing(Enum):
    """What ``fit()`` does."""

    NEW = "new"
    FOLLOW = "follow"
    RESUME = "resume"
    FINISHED = "finished"

    @property
    def begins(self) -> bool:
        """Whether this ``fit()`` is the one that runs the run."""
        return self in (Existing.NEW, Existing.RESUME)


def decide_on_existing(
    paths: RunPaths, spec: RunSpec, job_is_alive: Callable[[str], bool]
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

    Raises
    ------
    ConfigError
        As in the table.
    """
    status = read_status(paths)
    if status is None:
        return Existing.NEW, []
    plan: dict[str, Any] = json.loads(paths.plan.read_bytes())
    same = plan["fingerprint"] == spec.fingerprint
    name = paths.root.name
    if is_live(status, job_is_alive):
        if same:
            return Existing.FOLLOW, []
        where = (
            f"job {status.job_id}"
            if status.job_id
            else f"process {status.owner_pid} on {status.owner_host}"
        )
        raise ConfigError(
            f"run {name!r} in {paths.root.parent} is running ({where}), and this fit() asks for "
            f"something else (another training function, configuration or number of workers). "
            f"Choose another RunConfig(name=...), or end it first: hpctrain cancel {paths.root}"
        )
    if status.state is RunState.FINISHED:
        if same:
            return Existing.FINISHED, []
        raise ConfigError(
            f"run {name!r} in {paths.root.parent} is finished, and this fit() asks for something "
            f"else{_named(_changes(plan, spec))}. Choose another RunConfig(name=...); to begin "
            f"where it ended, pass "
            f"resume_from_checkpoint=Result.from_path({str(paths.root)!r}).checkpoint."
        )
    for what, now in (("trainer", spec.trainer), ("backend", spec.backend)):
        if plan[what] != now:
            raise ConfigError(
                f"run {name!r} in {paths.root.parent} belongs to {what} {plan[what]}, and this "
                f"fit() has {now}. Choose another RunConfig(name=...)."
            )
    return Existing.RESUME, [] if same else _changes(plan, spec)


def is_live(status: RunStatus, job_is_alive: Callable[[str], bool]) -> bool:
    """Return whether an executor is, or will be, at work on a run. Not collective."""
    if status.state.is_final:
        return False
    if status.launcher == "slurm":
        return status.job_id is not None and job_is_alive(status.job_id)
    if status.launcher == "allocation" and status.job_id is not None:
        if status.state is RunState.SUBMITTED:
            return status.job_id != environ.variable("SLURM_JOB_ID") and job_is_alive(status.job_id)
        if _was_started_again_since(status):
            return False
    if status.owner_host == socket.gethostname():
        return process_start_time(status.owner_pid) == status.owner_start
    return time.time() - status.updated_at < _SILENCE_MEANS_DEAD_S


def job_is_alive(job_id: str) -> bool:
    """Return whether a job of Slurm waits or runs. Not collective.

    Raises
    ------
    LaunchError
        If the controller does not answer.
    """
    from hpctrain.slurm.job import find_job

    job = find_job(job_id)
    return job is not None and not job.is_final


def _was_started_again_since(status: RunStatus) -> bool:
    """Return whether this process is in the job of a run, which Slurm has started anew."""
    return (
        status.job_id == environ.variable("SLURM_JOB_ID")
        and environ.restart_count() > status.restarts
    )


def _named(changes: list[str]) -> str:
    return f" ({', '.join(changes)})" if changes else ""


def _changes(plan: dict[str, Any], spec: RunSpec) -> list[str]:
    before, now = plan["digests"], spec.digests
    return [what for what in now if before.get(what, now[what]) != now[what]]
