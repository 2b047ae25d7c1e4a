"""``ledger.jsonl``: the memory of a run. Every attempt, where it ran, and why it ended."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hpctrain.rundir.files import append_durably
from hpctrain.rundir.history import FailureKind
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.reading import is_job_id, is_time, read_lines


def append_event(paths: RunPaths, event: str, **details: Any) -> None:
    """Append an event. Not collective. Durable when this returns.

    Parameters
    ----------
    event
        ``fit``, ``submitted``, ``attempt-started``, ``attempt-ended``, ... as in the description of
        the run directory.
    **details
        JSON values.

    Raises
    ------
    OSError
        If it cannot be written as a whole.
    """
    line = json.dumps({"event": event, "time": time.time(), **details}, default=str) + "\n"
    append_durably(paths.ledger, line.encode())


def read_events(paths: RunPaths) -> list[dict[str, Any]]:
    """Return all events, oldest first; lines that are torn or damaged are left out.

    Not collective.
    """
    return read_lines(paths.ledger, is_event)


def is_event(value: Any) -> bool:
    """Return whether a JSON value is an event whose fields are what they have to be.

    Not collective.
    """
    return (
        isinstance(value, dict)
        and isinstance(value.get("event"), str)
        and is_time(value.get("time"))
        and all(name in value for name in _REQUIRED.get(value["event"], ()))
        and all(rule(value[name]) for name, rule in _RULES.items() if name in value)
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


_REQUIRED = {
    **dict.fromkeys(("attempt-started", "attempt-ended"), ("attempt",)),
    **dict.fromkeys(("submitted", "successor"), ("job_id",)),
    "node-bad": ("node", "reason"),
    "stop-criterion-met": ("report", "why"),
}
"""Fields without which an event means nothing; where others are missing they are unknown."""
_RULES: Mapping[str, Callable[[Any], bool]] = {
    "attempt": _is_count,
    "first_report": _is_count,
    "report": _is_count,
    "saved": _is_count,
    "reports": lambda value: value is None or _is_count(value),
    "restarts": _is_count,
    "until": is_time,
    "metrics": lambda value: isinstance(value, dict),
    "job_id": lambda value: value is None or is_job_id(value),
    "kind": lambda value: value is None or value in [kind.value for kind in FailureKind],
    "nodes": lambda value: isinstance(value, (list, str)),
    **dict.fromkeys(
        ("resumed_from", "checkpoint", "cause", "what", "error"),
        lambda value: value is None or isinstance(value, str),
    ),
}
"""What fields that are read by programs have to be, in whatever event they are."""


def newest_attempt(paths: RunPaths) -> int:
    """Return the number of the last attempt that was started; 0 if none was. Not collective."""
    return last_number(read_events(paths))


def last_number(events: Iterable[Mapping[str, Any]]) -> int:
    """Return the highest number of an attempt that any event has; 0 if none has one.

    Not collective. The line of its start may be lost or damaged: lines are not counted.
    """
    return max((event["attempt"] for event in events if "attempt" in event), default=0)
