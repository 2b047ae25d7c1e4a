"""Time in which this process ran: what a patience with others is measured in.

``scontrol suspend``, a preemption with PreemptMode=SUSPEND, gang scheduling, Ctrl-Z and SIGSTOP let
a process stand still while the clocks go on. What others did meanwhile it does not know, and they
may have stood still with it: so a gap between two looks at the clock counts as a short one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

LONGEST_GAP_S = 1.0
"""Seconds that may lie between two looks of a process that runs; what is above them does not count.
Whoever waits looks several times a second."""
LOOK_INTERVAL_S = 0.25
"""Seconds between two looks of whoever waits for something that wakes it."""


class OwnTime:
    """Seconds in which a process ran, as far as it looked. Pure: the clock is the caller's.

    Parameters
    ----------
    now
        Seconds of a clock that never goes back.
    longest_gap_s
        Seconds that may lie between two looks.
    """

    def __init__(self, now: float, *, longest_gap_s: float = LONGEST_GAP_S) -> None:
        self._longest_gap_s = longest_gap_s
        self._looked_at = now
        self.now = 0.0
        """Seconds of its own since the beginning, at the last look."""

    def look(self, now: float) -> float:
        """Return the seconds of its own since the beginning. To be called often."""
        self.now += min(now - self._looked_at, self._longest_gap_s)
        self._looked_at = now
        return self.now


class Deadline:
    """The end of a wait, so many seconds of this process's own time from now.

    Parameters
    ----------
    timeout_s
        Seconds.
    longest_gap_s
        Seconds that may lie between two looks.
    clock
        Seconds that never go back.
    """

    def __init__(
        self,
        timeout_s: float,
        *,
        longest_gap_s: float = LONGEST_GAP_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._timeout_s = timeout_s
        self._time = OwnTime(clock(), longest_gap_s=longest_gap_s)

    @property
    def left_s(self) -> float:
        """Seconds that are left; 0 once it is over. To be asked often."""
        return max(0.0, self._timeout_s - self._time.look(self._clock()))

    @property
    def is_over(self) -> bool:
        """Whether there is no time left. To be asked often."""
        return self.left_s == 0.0


def wait_for(
    condition: threading.Condition, predicate: Callable[[], bool], timeout_s: float
) -> bool:
    """Wait as ``Condition.wait_for`` does, but in this process's own time. Not collective.

    Parameters
    ----------
    condition
        It is held.
    predicate
        What is waited for.
    timeout_s
        Seconds to wait at most.
    """
    deadline = Deadline(timeout_s)
    while not condition.wait_for(predicate, min(deadline.left_s, LOOK_INTERVAL_S)):
        if deadline.is_over:
            return predicate()
    return True
