"""``hpctrain history``: the attempts of a run, and why each ended."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hpctrain.cli.options import DEFAULT_STORAGE, JsonOption, RunArgument, StorageOption

if TYPE_CHECKING:
    from hpctrain.rundir.attempts import AttemptRecord
    from hpctrain.rundir.paths import RunPaths
    from hpctrain.rundir.status import RunStatus

_WIDTH = 80
_KEY_WIDTH = 9
# A run at work writes its status every few seconds; other hosts see it later.
_SILENCE_S = 60.0


def history(
    run: RunArgument, storage: StorageOption = DEFAULT_STORAGE, json: JsonOption = False
) -> None:
    """Show every attempt of a run: when, where, from and to which checkpoint, and why it ended.

    It reads only the run directory, and does not query Slurm.
    """
    import shutil
    import sys

    from hpctrain.cli.exit_codes import say
    from hpctrain.cli.json_output import print_json
    from hpctrain.cli.stored_runs import find_run
    from hpctrain.rundir.ledger import read_events
    from hpctrain.rundir.status import explain_gap

    paths = find_run(run, storage)
    # What the status says has happened is in a ledger that is read later.
    status = _read_status(paths)
    events = read_events(paths)
    if status is not None and (gap := explain_gap(events, status)):
        say(f"warning: {paths.ledger} is damaged: {gap}.")
    if json:
        print_json(to_json(paths, events, status))
        return
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _WIDTH
    print(render_history(paths.root.name, events, status, now=time.time(), width=width))


def _read_status(paths: RunPaths) -> RunStatus | None:
    from hpctrain.cli.exit_codes import say
    from hpctrain.errors import DamagedFileError
    from hpctrain.rundir.status import read_status

    try:
        status = read_status(paths)
    except (OSError, DamagedFileError):
        return None
    if status is not None and status.damage:
        # The ledger suffices.
        say(f"warning: {status.damage}.")
        return None
    return status


def to_json(
    paths: RunPaths, events: Sequence[dict[str, Any]], status: RunStatus | None
) -> dict[str, Any]:
    """Return the object that ``--json`` prints. Not collective."""
    from dataclasses import asdict

    from hpctrain.rundir.attempts import RESTARTS, read_attempts

    _, attempts = read_attempts(events)
    records = [asdict(record) for record in _with_last_nodes(attempts, status)]
    for record in records:
        record["notes"] = [{"time": at, "what": what} for at, what in record["notes"]]
    return {
        "name": paths.root.name,
        "path": str(paths.root),
        "state": _state(events, status),
        "started_at": events[0]["time"] if events else None,
        "updated_at": status.updated_at if status is not None else None,
        "ended_at": status.ended_at if status is not None else None,
        "jobs": _jobs(events),
        "num_restarts": sum(event["event"] in RESTARTS for event in events),
        "attempts": records,
        "events": list(events),
    }


def render_history(
    name: str,
    events: Sequence[dict[str, Any]],
    status: RunStatus | None,
    *,
    now: float,
    width: int,
) -> str:
    """Return the history of a run as text. Pure."""
    from hpctrain.host_list import compress_hosts
    from hpctrain.printable import show_controls
    from hpctrain.rundir.announcement import describe_start
    from hpctrain.rundir.attempts import RESTARTS, read_attempts
    from hpctrain.rundir.display import counted, format_elapsed

    before, attempts = read_attempts(events)
    attempts = _with_last_nodes(attempts, status)
    restarts = sum(event["event"] in RESTARTS for event in events)
    counts = [counted(len(attempts), "attempt"), counted(restarts, "restart")]
    if jobs := _jobs(events):
        counts.append(counted(len(jobs), "job"))
    lines = [f"{name}: {_state(events, status)}, {', '.join(counts)}"]
    if status is not None and not status.state.is_final:
        lines[0] += f" (written {format_elapsed(now - status.updated_at)} ago)"
    lines += _notes(before, width)
    for record in attempts:
        took = _span(record, None if status is None else status.updated_at)
        job = f", job {record.job_id}" if record.job_id else ""
        lines += ["", f"  attempt {record.attempt}: {took}{job}"]
        rows = [("nodes", compress_hosts(record.nodes))] if record.nodes else []
        rows.append(("from", describe_start(record.resumed_from)))
        if record.reports is not None:
            saved = f", checkpoint {record.checkpoint}" if record.checkpoint else ""
            rows.append(("to", f"report {record.reports}{saved}"))
        if ended := _describe_end(record, status, is_last=record is attempts[-1], now=now):
            rows.append(("ended", ended))
        for key, value in rows:
            lines += _wrap(key, value, width)
        lines += _notes(record.notes, width)
    return show_controls("\n".join(lines))


def _describe_end(
    record: AttemptRecord, status: RunStatus | None, *, is_last: bool, now: float
) -> str:
    """Return why an attempt ended; what is known of that where the ledger does not have it."""
    from hpctrain.rundir.display import format_elapsed

    if record.cause is not None:
        return record.cause
    if not is_last or (status is not None and status.state.is_final):
        return "unknown: its executor was killed before it could write why, or could not"
    if status is None or now - status.updated_at < _SILENCE_S:
        return ""
    return (
        f"none is recorded, and nothing was written for {format_elapsed(now - status.updated_at)}: "
        f"if its executor was killed, hpctrain status says so"
    )


def _with_last_nodes(
    attempts: Sequence[AttemptRecord], status: RunStatus | None
) -> list[AttemptRecord]:
    """Add the nodes of the running attempt, which the ledger gets only at its end."""
    from dataclasses import replace

    runs = [r for r in attempts[-1:] if r.ended_at is None]
    if status is None or not runs or runs[0].attempt != status.attempt:
        return list(attempts)
    last = replace(
        runs[0], nodes=status.nodes, reports=status.reports, checkpoint=status.checkpoint
    )
    return [*attempts[:-1], last]


def _state(events: Sequence[dict[str, Any]], status: RunStatus | None) -> str:
    if status is not None:
        return status.state.value
    ends = [event.get("state") for event in events if event["event"] == "run-ended"]
    return str(ends[-1]) if ends else "prepared"


def _jobs(events: Sequence[dict[str, Any]]) -> list[str]:
    """Return the jobs of the run, in order."""
    names = ("submitted", "executor-started", "attempt-started", "successor")
    ids = [event.get("job_id") for event in events if event["event"] in names]
    return list(dict.fromkeys(str(job_id) for job_id in ids if job_id is not None))


def _span(record: AttemptRecord, updated_at: float | None) -> str:
    from hpctrain.rundir.display import format_elapsed

    begun, ended = record.started_at, record.ended_at
    if begun is None:
        return f"until {_clock(ended)}" if ended is not None else ""
    if ended is None:
        so_far = f" ({format_elapsed(updated_at - begun)} so far)" if updated_at else ""
        return f"since {_clock(begun)}{so_far}"
    return f"{_clock(begun)} to {_clock(ended, after=begun)} ({format_elapsed(ended - begun)})"


def _clock(at: float, *, after: float | None = None) -> str:
    day, clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at)).split()
    same = after is not None and time.strftime("%Y-%m-%d", time.localtime(after)) == day
    return clock if same else f"{day} {clock}"


def _notes(notes: Sequence[tuple[float, str]], width: int) -> list[str]:
    lines = []
    for at, what in notes:
        lines += _wrap(time.strftime("%H:%M:%S", time.localtime(at)), what, width)
    return lines


def _wrap(key: str, value: str, width: int) -> list[str]:
    from hpctrain.cli.terminal import wrap
    from hpctrain.rundir.display import one_line

    return wrap(f"    {key:<{_KEY_WIDTH}} ", one_line(value), width)
