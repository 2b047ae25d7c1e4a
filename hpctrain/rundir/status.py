"""``status.json``: how a run is doing, as its executor last saw it."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from hpctrain.errors import DamagedFileError
from hpctrain.rundir.files import write_atomic
from hpctrain.rundir.ledger import newest_attempt, read_events
from hpctrain.rundir.origin import Origin
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.reading import damaged, is_job_id, is_time, misfits, read_object
from hpctrain.rundir.states import TRANSITIONS, Action, RunEvent, RunState, next_state


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """How a run is doing. Times are seconds since the epoch."""

    name: str
    state: RunState
    launcher: str
    attempt: int = 0
    """Attempts so far."""
    world_size: int = 0
    nodes: tuple[str, ...] = ()
    """Host names, by node rank."""
    job_id: str | None = None
    """Slurm's job id."""
    restarts: int = 0
    """How often Slurm had started that job again when the executor began."""
    owner_host: str = ""
    """Host of the executor."""
    owner_pid: int = 0
    owner_start: int = 0
    """Start time of the executor's process in clock ticks since boot: with the pid it is unique."""
    phase: str = ""
    """The earliest phase that any rank is in."""
    stalled: str = ""
    """Which ranks make no progress, where, and since when; empty as long as all do."""
    slow: str = ""
    """Which nodes make every step longer, by how much, and what they suffer from; empty without."""
    deadline: float | None = None
    """When the time limit of its job, or ``RunConfig(total_time=...)``, ends; None if neither is
    known."""
    last_restart: str = ""
    """Why the ranks were last started again, and from where; empty before the first restart."""
    reports: int = 0
    """Reports that all ranks have made."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """Rank 0's last metrics."""
    checkpoint: str | None = None
    """Name of the newest complete checkpoint."""
    started_at: float = 0.0
    updated_at: float = 0.0
    ended_at: float | None = None
    error: str | None = None
    """Why the run failed, or was stopped."""
    error_type: str | None = None
    """Name of the class of that error."""
    path: str = ""
    """The run directory, as the run was begun with it; empty in runs of older versions."""
    device: int = 0
    inode: int = 0
    """Of that directory, as it saw it: a directory for which none of this holds is a copy."""
    damage: str = ""
    """Why ``status.json`` could not be read, and all of this is from the ledger; never written."""

    @property
    def mark(self) -> tuple[object, ...]:
        """What differs after each write. Two equal statuses can differ: NaN does from itself."""
        owner = (self.owner_host, self.owner_pid, self.owner_start, self.job_id)
        return (self.updated_at, self.state, self.attempt, self.reports, *owner)

    def with_changes(self, **changes: Any) -> RunStatus:
        """Return a copy with some fields changed."""
        if unknown := changes.keys() - _FIELDS:
            raise TypeError(f"RunStatus has no {sorted(unknown)}")
        # `replace` passes all fields through __init__, which takes five times as long.
        changed = object.__new__(RunStatus)
        vars(changed).update(vars(self), **changes)
        return changed

    def after(self, event: RunEvent, *, now: float | None = None, **changes: Any) -> RunStatus:
        """Return the status after an event; the same one if the event comes too late.

        Parameters
        ----------
        event
            What happened.
        now
            When, in seconds since the epoch; None is now.
        **changes
            Further fields of the status.
        """
        if event not in TRANSITIONS[self.state]:
            return self
        state, action = next_state(self.state, event)
        own: dict[str, Any] = {"stalled": "", "slow": ""}
        if action is Action.NOTE_END:
            own |= {"ended_at": time.time() if now is None else now}
        else:
            own |= {"ended_at": None, "error": None, "error_type": None}
        if state is RunState.SUBMITTED:
            # Of the executor that is gone.
            own |= {"phase": "", "deadline": None}
        return self.with_changes(state=state, **{**own, **changes})

    def placed_in(self, root: Path) -> RunStatus:
        """Return a copy for a run that begins in a directory."""
        stat = os.stat(root)
        return replace(self, path=str(root.absolute()), device=stat.st_dev, inode=stat.st_ino)

    def is_of(self, root: Path) -> bool:
        """Return whether it is that of the run in a directory, and not of one that was copied."""
        origin = Origin(
            path=self.path,
            device=self.device,
            inode=self.inode,
            is_of_this_host=self.owner_host == socket.gethostname(),
        )
        return origin.is_at(root)


def write_status(paths: RunPaths, status: RunStatus) -> RunStatus:
    """Write the status and return it, stamped with the time. Not collective."""
    status = replace(status, updated_at=time.time(), damage="")
    content = {**asdict(status), "state": status.state.value}
    del content["damage"]
    write_atomic(paths.status, json.dumps(content, default=str).encode())
    return status


def read_status(paths: RunPaths) -> RunStatus | None:
    """Return the status, or None where there is none yet. Not collective.

    In a copy of a run that was at work when it was copied, it is that of a run which was stopped:
    job and process are the original's. Where the file is damaged, it is rebuilt from the
    ledger, and has the reason (`RunStatus.damage`).

    Raises
    ------
    OSError
        If it cannot be read just now.
    """
    try:
        status = _decode(paths)
    except (FileNotFoundError, NotADirectoryError):
        if not newest_attempt(paths):
            return None
        status = rebuild_status(paths, why=f"{paths.status} is missing")
    except DamagedFileError as error:
        status = rebuild_status(paths, why=str(error).partition(". ")[0])
    if status.state.is_final or status.is_of(paths.root):
        return status
    return _as_copy(status, paths.root)


def last_attempt(paths: RunPaths) -> dict[str, Any]:
    """Return the fields of the status on the last attempt, and where it ran.

    Not collective. For a status that begins anew: what is known of an attempt whose executor died
    is in the status that it wrote.
    """
    attempt, previous = newest_attempt(paths), read_status(paths)
    if previous is None or previous.attempt < attempt:
        return {"attempt": attempt}
    # The ledger may have lost the line of its start.
    attempt = previous.attempt
    return {"attempt": attempt, "world_size": previous.world_size, "nodes": previous.nodes}


_FIELDS = frozenset(f.name for f in fields(RunStatus))
_NAMES = _FIELDS - {"damage"}
_STATES = {state.value: state for state in RunState}
_LAST_EVENT_S = 30.0
"""Seconds after its last status in which an executor writes the last event."""
_TIMES = ("started_at", "updated_at", "ended_at", "deadline")


def _decode(paths: RunPaths) -> RunStatus:
    content = read_object(paths.status)
    known = {name: value for name, value in content.items() if name in _NAMES}
    state = known.pop("state", None)
    wrong = misfits(RunStatus, known)
    if not isinstance(state, str) or state not in _STATES:
        wrong = ["state", *wrong]
    wrong += [name for name in ("name", "launcher") if name not in known]
    wrong += [n for n in _TIMES if known.get(n) is not None and not is_time(known[n])]
    if known.get("job_id") is not None and not is_job_id(known["job_id"]):
        wrong.append("job_id")
    if wrong:
        raise damaged(paths.status, f"{wrong[0]} is {content.get(wrong[0])!r:.80}")
    known["nodes"] = tuple(known.get("nodes", ()))
    return RunStatus(**known, state=_STATES[state])


def _as_copy(status: RunStatus, root: Path) -> RunStatus:
    return status.with_changes(
        name=root.name,
        state=RunState.STOPPED,
        job_id=None,
        owner_host="",
        owner_pid=0,
        owner_start=0,
        stalled="",
        slow="",
        error=f"{root} is a copy of {status.path}, made while that run was at work, and the "
        f"copy is not. fit() with its storage_path and name resumes it from its own checkpoints, "
        f"as a run of its own.",
        error_type="RunStoppedError",
        ended_at=status.updated_at,
    )


def rebuild_status(paths: RunPaths, *, why: str) -> RunStatus:
    """Return the status that follows from the ledger. Not collective.

    Parameters
    ----------
    why
        Why ``status.json`` cannot be read.
    """
    # Without an owner, readers take it for alive as long as the file changes.
    status = RunStatus(name=paths.root.name, state=RunState.RUNNING, launcher="", damage=why)
    for event in read_events(paths):
        status = _after(status, event)
    # An executor that is at work writes the file every two seconds, damaged as it is.
    with suppress(OSError):
        status = replace(status, updated_at=os.lstat(paths.status).st_mtime)
    return status


def _after(status: RunStatus, event: Mapping[str, Any]) -> RunStatus:
    """Return a status as it is after an event of the ledger."""
    now, kind = event["time"], event["event"]
    job_id = event.get("job_id")
    if kind == "fit":
        launcher = str(event.get("launcher", ""))
        status = status.after(RunEvent.REQUESTED, launcher=launcher)
        status = replace(status, started_at=status.started_at or now)
    elif kind in ("submitted", "successor", "requeued"):
        status = status.after(RunEvent.SUBMITTED, job_id=job_id)
    elif kind == "executor-started":
        restarts = event.get("restarts", 0)
        status = status.after(RunEvent.STARTED, job_id=job_id, restarts=restarts)
    elif kind == "attempt-started":
        resumed_from = event.get("resumed_from")
        status = status.after(RunEvent.STARTED).after(
            RunEvent.JOINED,
            attempt=event["attempt"],
            reports=event.get("first_report", 0),
            checkpoint=os.path.basename(resumed_from) if resumed_from else None,
        )
    elif kind == "attempt-ended":
        nodes = event.get("nodes")
        status = replace(
            status,
            nodes=tuple(map(str, nodes)) if isinstance(nodes, list) else (),
            reports=event.get("reports") or 0,
            checkpoint=event.get("checkpoint"),
        )
    elif kind == "refused":
        status = status.after(RunEvent.REFUSED, now=now, error=event.get("error"))
    elif kind == "run-ended":
        known = {event.value: event for event in (RunEvent.FINISHED, RunEvent.FAILED)}
        end = known.get(event.get("state", ""), RunEvent.STOPPED)
        status = status.after(end, now=now, error=event.get("error"))
    return replace(status, updated_at=now)


def explain_gap(events: Sequence[Mapping[str, Any]], status: RunStatus) -> str | None:
    """Return what a ledger lacks of the status of its run; None if it lacks nothing.

    Not collective.
    """
    started = sum(event["event"] == "attempt-started" for event in events)
    if started < status.attempt:
        return f"it has {started} of {status.attempt} attempts"
    has_ended = status.state in (RunState.FINISHED, RunState.FAILED)
    # The executor writes its status first.
    has_ended = has_ended and time.time() - (status.ended_at or 0.0) > _LAST_EVENT_S
    if has_ended and not any(event["event"] == "run-ended" for event in events):
        return "it does not say how the run ended"
    return None
