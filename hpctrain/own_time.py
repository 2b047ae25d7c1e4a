"""Time in which this process ran: the unit of its waits for other processes.

``scontrol suspend``, a preemption with PreemptMode=SUSPEND, gang scheduling, Ctrl-Z and SIGSTOP
suspend a process while the clocks continue. It cannot detect what others did meanwhile, and they
may have been suspended too: so a long gap between two readings of the clock counts as a short one.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

LONGEST_GAP_S = 1.0
"""Longest gap between two readings of the clock in a running process; the excess does not count. A
waiting process reads the clock several times a second."""
ANY_GAP_S = math.inf
"""As `longest_gap_s`: all time of the clock counts, as for waits between calls that may block for
seconds."""
LOOK_INTERVAL_S = 0.25
"""Seconds between two readings of the clock in a wait for an event."""


class OwnTime:
    """Seconds in which a process ran, up to its last reading. Pure: the caller reads the clock.

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
        """Running time since the beginning, at the last reading."""

    def look(self, now: float) -> float:
        """Return the running time since the beginning. Call it often."""
        self.now += min(now - self._looked_at, self._longest_gap_s)
        self._looked_at = now
        return self.now


class Deadline:
    """The end of a wait, in seconds of this process's running time.

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
        """Remaining seconds; 0 after the end. To be read often."""
        return max(0.0, self._timeout_s - self._time.look(self._clock()))

    @property
    def is_over(self) -> bool:
        """Whether the time is over. To be read often."""
        return self.left_s == 0.0


def wait_for(
    condition: threading.Condition, predicate: Callable[[], bool], timeout_s: float
) -> bool:
    """Wait as ``Condition.wait_for`` does, but in this process's running time. Not collective.

    Parameters
    ----------
    condition
        It is held.
    predicate
        What is waited for.
    timeout_s
        Seconds to wait at most.
    """
    if predicate():
        # As a rule: what follows takes as long as the rest of a report().
        return True
    deadline = Deadline(timeout_s)
    while not condition.wait_for(predicate, min(deadline.left_s, LOOK_INTERVAL_S)):
        if deadline.is_over:
            return predicate()
    return True
