"""`Interruptions`: what may stop a sweep from outside."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from hpctrain.tune.stops import StopTimes


@dataclass(frozen=True, kw_only=True)
class Interruptions:
    """The end of the job of a sweep, a person, and another tuner. By default nothing happens."""

    why_job_ends: Callable[[], str] = lambda: ""
    """Returns why the job of this process is about to end: the sweep stops, and goes on later;
    empty as long as it is not."""
    why_leave: Callable[[], str] = lambda: ""
    """Returns why a person has asked for the same; empty until then."""
    find_stopped: Callable[[], Collection[str]] = lambda: ()
    """Returns the names of the trials that a person has stopped for good."""
    is_urgent: Callable[[], bool] = lambda: False
    """Returns whether runs are to end at once when the sweep stops."""
    stop_times: Callable[[float], StopTimes] = StopTimes.of
    """Returns how long trials are waited for, given the seconds that they have if nothing
    presses."""
    check_hold: Callable[[], None] = lambda: None
    """Raises SupersededError if another process runs the sweep by now."""
