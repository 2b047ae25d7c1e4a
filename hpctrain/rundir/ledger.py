"""``ledger.jsonl``: the memory of a run. Every attempt, where it ran, and why it ended."""

from __future__ import annotations

import errno
import json
import os
import time
from typing import Any

from hpctrain.rundir.files import open_append, parse_lines
from hpctrain.rundir.paths import RunPaths


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
    descriptor = open_append(paths.ledger)
    try:
        written = os.write(descriptor, line.encode())
        if written < len(line.encode()):
            # What is there of it is ended, and left out, by whoever writes or reads next.
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(paths.ledger))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_events(paths: RunPaths) -> list[dict[str, Any]]:
    """Return all events, oldest first; lines that are torn or damaged are left out.

    Not collective.
    """
    try:
        text = paths.ledger.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    return [line for line in parse_lines(text) if is_event(line)]


def is_event(value: Any) -> bool:
    """Return whether a JSON value is an event. Not collective."""
    return (
        isinstance(value, dict)
        and isinstance(value.get("event"), str)
        and isinstance(value.get("time"), (int, float))
    )


def count_attempts(paths: RunPaths) -> int:
    """Return the number of attempts that were started. Not collective."""
    return sum(event["event"] == "attempt-started" for event in read_events(paths))
