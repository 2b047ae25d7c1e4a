"""`Hangups`: in which order connections have ended, whatever had come over them before."""

from __future__ import annotations

import select
import selectors
from collections.abc import Sequence

_Ready = tuple[selectors.SelectorKey, int]


class Hangups:
    """Puts what a selector finds in the order in which it has ended.

    A selector returns descriptors in the order in which each became readable: one whose process
    has sent something, and has died much later, comes before one that has died in between. An epoll
    for nothing but the end (``EPOLLRDHUP``, man 2 epoll_ctl) has a queue of its own, in the order
    of the ends. Connections of a tree of agents are not in it.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._num_watched = 0

    def add(self, descriptor: int) -> None:
        """Look for the end of a connection."""
        self._epoll.register(descriptor, select.EPOLLRDHUP)
        self._num_watched += 1

    def remove(self, descriptor: int) -> None:
        """Undo `add`, before the descriptor is closed."""
        self._epoll.unregister(descriptor)
        self._num_watched -= 1

    def put_in_order(self, ready: Sequence[_Ready]) -> Sequence[_Ready]:
        """Return connections that have ended first, in that order, and then the others."""
        if len(ready) < 2 or not self._num_watched:
            return ready
        found = self._epoll.poll(0, self._num_watched)
        ended = {fd: number for number, (fd, _) in enumerate(found)}
        return sorted(ready, key=lambda each: ended.get(each[0].fd, len(ended)))

    def close(self) -> None:
        """Free the descriptor."""
        self._epoll.close()
