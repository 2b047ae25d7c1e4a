"""`Rounds`: which rank the workers of an elastic run get, each time one of them was replaced."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from hpctrain.own_time import wait_for


class Rounds:
    """Agreement on ranks between workers that come and go.

    Each worker has a slot, which its replacement inherits. A round begins when the worker of every
    slot asks for a rank: the new one because it is new, the others because they have lost it. They
    keep their ranks, but rank 0 is always one of those that have been there for longest: the others
    get their state from it.

    Parameters
    ----------
    size
        Number of slots.
    timeout_s
        Seconds that the first one that asks waits for the last.
    """

    def __init__(self, size: int, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._changed = threading.Condition()
        self._ranks = list(range(size))
        self._round = 0
        self._here_since: dict[int, int] = {}
        """The first round of the worker of a slot."""
        self._asking: dict[int, object] = {}
        self._finished = False
        self.on_round: Callable[[Sequence[int]], None] = lambda ranks: None
        """Is called with the rank of each slot before a round begins."""

    def ask(self, slot: int) -> tuple[int, ...] | None:
        """Wait for the next round; return the rank of each slot.

        Not collective. None: there is no such round, because workers do not come in time, have
        finished, or the one that asks has been replaced meanwhile.
        """
        with self._changed:
            request = self._asking[slot] = object()
            current = self._round
            if len(self._asking) == len(self._ranks):
                self._begin()

            def decided() -> bool:
                gone = self._asking.get(slot) is not request
                return self._round > current or self._finished or gone

            wait_for(self._changed, decided, self._timeout_s)
            if self._round > current:
                return tuple(self._ranks)
            if self._asking.get(slot) is request:
                del self._asking[slot]
            return None

    def replace(self, slot: int) -> None:
        """Record that the worker of a slot is dead. Not collective."""
        with self._changed:
            self._asking.pop(slot, None)
            self._here_since.pop(slot, None)
            self._changed.notify_all()

    def finish(self, slot: int) -> None:
        """Record that the worker of a slot has returned: there is no further round."""
        with self._changed:
            self._finished = True
            self._changed.notify_all()

    def _begin(self) -> None:
        self._round += 1
        for slot in range(len(self._ranks)):
            self._here_since.setdefault(slot, self._round)
        first_round = min(self._here_since.values())
        root = self._ranks.index(0)
        if self._here_since[root] > first_round:
            eldest = min(
                (slot for slot, since in self._here_since.items() if since == first_round),
                key=self._ranks.__getitem__,
            )
            self._ranks[root], self._ranks[eldest] = self._ranks[eldest], 0
        self._asking.clear()
        self.on_round(tuple(self._ranks))
        self._changed.notify_all()
