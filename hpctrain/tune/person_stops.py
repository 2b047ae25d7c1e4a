"""What a person has stopped with ``hpctrain tune stop``: some trials, or the whole sweep."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from hpctrain.launch.storage import errors_of_storage
from hpctrain.own_files import DIRECTORY_MODE, FILE_MODE
from hpctrain.rundir.files import write_atomic
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.reading import is_time, parse_json, read_content
from hpctrain.tune.ledger import SweepPaths

REASON = "stopped by hpctrain tune stop"
"""Why a trial has ended that a person has stopped."""
_LOOK_INTERVAL_S = 1.0


@dataclass(frozen=True, kw_only=True)
class StopRequest:
    """That a person has stopped a sweep, which goes on once it is restored."""

    time: float
    """When, in seconds since the epoch."""
    is_now: bool = False
    """Whether its trials are to end at once, without a last checkpoint."""


def request_stop(paths: SweepPaths, *, now: bool) -> None:
    """Ask the tuner of a sweep to stop all trials, and itself. Not collective.

    Parameters
    ----------
    now
        Whether they are to end at once.

    Raises
    ------
    ConfigError
        If the directory of the sweep cannot be written.
    """
    content = json.dumps({"time": time.time(), "now": now}) + "\n"
    with errors_of_storage(RunPaths(paths.root)):
        write_atomic(paths.stop_request, content.encode())


def read_stop_request(paths: SweepPaths) -> StopRequest | None:
    """Return that a person has stopped a sweep since it was begun or restored; else None.

    Not collective.
    """
    try:
        content = parse_json(read_content(paths.stop_request))
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        content = None
    # Also an empty file, which `touch` has made, is a request.
    found = content if isinstance(content, dict) else {}
    when: Any = found.get("time")
    return StopRequest(time=when if is_time(when) else 0.0, is_now=found.get("now") is True)


def mark_stopped(paths: SweepPaths, trial_id: str) -> None:
    """Note that a person stops a trial for good, whether a tuner sees it or not. Not collective.

    Raises
    ------
    ConfigError
        If the directory of the sweep cannot be written.
    """
    mark = paths.stop_mark(trial_id)
    with errors_of_storage(RunPaths(paths.root)):
        mark.parent.mkdir(DIRECTORY_MODE, exist_ok=True)
        mark.touch(FILE_MODE)


class PersonStops:
    """Looks, once a second, for what a person has stopped.

    Parameters
    ----------
    paths
        Of the sweep.
    clock
        Of the time that passes.
    """

    def __init__(self, paths: SweepPaths, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._paths, self._clock = paths, clock
        self._looked_at = -_LOOK_INTERVAL_S
        self._trials: Collection[str] = ()
        self._request: StopRequest | None = None

    def trials(self) -> Collection[str]:
        """Return the names of the trials that are to end for good. Not collective."""
        self._look()
        return self._trials

    def why(self) -> str:
        """Return why the sweep is to stop; empty as long as it is not. Not collective."""
        self._look()
        return "" if self._request is None else "hpctrain tune stop asked for it"

    @property
    def is_now(self) -> bool:
        """Whether trials are to end at once."""
        return self._request is not None and self._request.is_now

    def withdraw(self) -> StopRequest | None:
        """Let a sweep that is restored go on; return the request of before. Not collective."""
        request = read_stop_request(self._paths)
        with suppress(FileNotFoundError):
            self._paths.stop_request.unlink()
        return request

    def forget(self, trial_id: str) -> None:
        """Let a trial run again that a person has stopped. Not collective."""
        with suppress(FileNotFoundError):
            self._paths.stop_mark(trial_id).unlink()

    def _look(self) -> None:
        if self._clock() - self._looked_at < _LOOK_INTERVAL_S:
            return
        self._looked_at = self._clock()
        try:
            self._trials = os.listdir(self._paths.stopped)
        except OSError:
            # There is none yet, or its server is away: what was seen before holds.
            pass
        self._request = self._request or read_stop_request(self._paths)
