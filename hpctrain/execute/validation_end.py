"""`ValidationEnd`: how a validation has ended, by its files."""

from __future__ import annotations

import json
import signal
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpctrain.printable import show_controls
from hpctrain.rundir.manifest import Manifest
from hpctrain.worker.failure import RankFailure

_LONGEST_LINE = 200
_LONGEST_MESSAGE, _LONGEST_TRACEBACK = 2000, 10_000


@dataclass(frozen=True, kw_only=True)
class ValidationEnd:
    """How a validation has ended."""

    manifest: Manifest
    metrics: Mapping[str, Any]
    error: str | None
    traceback: str = ""
    """Of the validation function, if it raised."""
    log: Path | None = None
    seconds: float | None = None
    is_taken_away: bool = False
    """Whether a warning of Slurm, which goes to all of a job, came before it could ignore it."""
    leftovers: tuple[Path, ...] = ()
    """Files that are no longer needed once it is recorded."""


class RunningValidation(ABC):
    """A validation that goes on: a process, or a job.

    Parameters
    ----------
    manifest
        Of the checkpoint.
    log
        File that gets what it prints.
    """

    def __init__(self, manifest: Manifest, *, log: Path) -> None:
        self.manifest = manifest
        self.log = log
        """What it prints."""

    @property
    @abstractmethod
    def leftovers(self) -> tuple[Path, ...]:
        """Files that are no longer needed once its end is recorded."""

    @abstractmethod
    def look(self) -> ValidationEnd | None:
        """Return how it has ended; None while it goes on. Returns at once."""

    @abstractmethod
    def wait(self, timeout_s: float) -> None:
        """Wait for its end."""

    @abstractmethod
    def end(self) -> None:
        """End it: its metrics are not needed."""

    @abstractmethod
    def leave(self) -> None:
        """Let go of it. The run may go on elsewhere, and validate the checkpoint there."""

    def make_end(
        self,
        metrics: Mapping[str, Any],
        error: str | None,
        traceback: str = "",
        *,
        seconds: float | None = None,
        is_taken_away: bool = False,
    ) -> ValidationEnd:
        """Return an end of it, with its log and what it leaves behind.

        Parameters
        ----------
        metrics, error, traceback, seconds, is_taken_away
            As of `ValidationEnd`.
        """
        return ValidationEnd(
            manifest=self.manifest,
            metrics=metrics,
            error=error,
            traceback=traceback,
            log=self.log,
            seconds=seconds,
            is_taken_away=is_taken_away,
            leftovers=self.leftovers,
        )


def task_timeout_s(manifest: Manifest) -> float | None:
    """Return how long the validation of a checkpoint may take. Pure; not collective."""
    timeout_s = (manifest.validation or {}).get("timeout_s")
    return None if timeout_s is None else float(timeout_s)


def explain_timeout(timeout_s: float | None) -> str:
    """Return that a validation took longer than it may. Pure; not collective."""
    return f"it took longer than timeout_s={timeout_s:g}"


def read_metrics(result: Path) -> tuple[dict[str, Any], str | None]:
    """Return the metrics that a validation has written, or why there are none. Not collective."""
    try:
        metrics = json.loads(result.read_bytes())
    except (OSError, ValueError, RecursionError) as unreadable:
        return {}, f"its metrics cannot be read: {unreadable}"
    if not isinstance(metrics, dict):
        return {}, "its metrics are no dict"
    return metrics, None


def explain_signal(number: int) -> str:
    """Return that a signal has ended it. Pure; not collective."""
    # signal.Signals has no names of real-time signals.
    names = {known.value: known.name for known in signal.Signals}
    return f"it was killed by {names.get(number, f'signal {number}')}"


def explain_status(status: int, last_line: str, kept: Path) -> tuple[str, str]:
    """Return why it failed, and the traceback of its function, if that raised. Not collective.

    Parameters
    ----------
    status
        Its exit status; of a process that a signal has ended, the negative number.
    last_line
        Of its log.
    kept
        Where it keeps what its function raised.
    """
    if status < 0:
        return explain_signal(-status), ""
    try:
        failure = RankFailure.from_json(json.loads(kept.read_bytes()))
    except (OSError, ValueError, TypeError, RecursionError):
        # It failed before, or did not get as far.
        pass
    else:
        # It stands in one line of the ledger; the file has all of it.
        message = show_controls(str(failure.message))
        more = " ..." if len(message) > _LONGEST_MESSAGE else ""
        raised = f"{failure.type}: {message[:_LONGEST_MESSAGE]}{more}"
        return raised, show_controls(str(failure.traceback)[:_LONGEST_TRACEBACK])
    printed = f": {show_controls(last_line.strip()[:_LONGEST_LINE])}" if last_line.strip() else ""
    return f"it ended with status {status}{printed}", ""
