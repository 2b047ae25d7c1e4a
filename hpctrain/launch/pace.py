"""How often a follower reads the files of a run: often while they change, seldom while not."""

from __future__ import annotations

from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus

_SHORTEST_S = 0.5
_LONGEST_S = 2.0
# A job may wait for days.
_LONGEST_IN_QUEUE_S = 5.0
_BACKOFF = 1.3


class Pace:
    """Seconds between two looks."""

    def __init__(self) -> None:
        self._interval = _SHORTEST_S
        self._last: object = None

    def next_interval(self, status: RunStatus | None) -> float:
        """Return the seconds to wait after a look that has found `status`. Not collective."""
        mark = None if status is None else status.mark
        if mark != self._last:
            self._last = mark
            self._interval = _SHORTEST_S
            return self._interval
        in_queue = status is not None and status.state is RunState.SUBMITTED
        longest = _LONGEST_IN_QUEUE_S if in_queue else _LONGEST_S
        self._interval = min(self._interval * _BACKOFF, longest)
        return self._interval
