"""How tests wait for what other processes and threads do. Ranks cannot import it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from hpctrain import Result

Found = TypeVar("Found")


def wait_until(
    condition: Callable[[], Found],
    what: str | Callable[[], str] = "it is not so",
    *,
    timeout_s: float = 60,
    interval_s: float = 0.02,
    process: subprocess.Popen[Any] | None = None,
) -> Found:
    """Return what a condition returns once that is true.

    It fails, with what it waits for, after a time, and where a process that is to make the
    condition true has ended before.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        ended = process is not None and process.poll() is not None
        if found := condition():
            return found
        if ended or time.monotonic() > deadline:
            break
        time.sleep(interval_s)
    why = f"not within {timeout_s:g} s"
    if ended and process is not None:
        said = process.communicate()[0] if process.stdout is not None else ""
        why = f"not before the end of {process.args}, with status {process.returncode}: {said}"
    raise AssertionError(f"{what if isinstance(what, str) else what()}: {why}")


def wait_until_final(
    run: Path, what: str | Callable[[], str] = "the end of the run", *, timeout_s: float = 60
) -> Result:
    """Return the result of a run once it has ended."""

    def look() -> Result | None:
        if not (run / "status.json").exists():
            return None
        result = Result.from_path(run)
        return result if result.status.state.is_final else None

    result = wait_until(look, what, timeout_s=timeout_s)
    assert result is not None
    return result
