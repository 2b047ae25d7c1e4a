"""`Hangups`: in which order connections have ended, whatever had come over them before."""

from __future__ import annotations

import select
import selectors
from collections.abc import Sequence
from contextlib import suppress

_Ready = tuple[selectors.SelectorKey, int]


class Hangups:
    """Puts what a selector finds in the order in which it has ended.

    A selector returns descriptors in the order in which each became readable: one whose process
    has sent something, and has died much later, comes before one that has died in between. An epoll
    for nothing but the end (``EPOLLRDHUP``, man 2 epoll_ctl) has a queue of its own, in the order
    of the ends.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()

    def add(self, descriptor: int) -> None:
        """Look for the end of a connection."""
        self._epoll.register(descriptor, select.EPOLLRDHUP)

    def remove(self, descriptor: int) -> None:
        """Undo `add`, before the descriptor is closed."""
        with suppress(OSError):
            self._epoll.unregister(descriptor)

    def put_in_order(self, ready: Sequence[_Ready]) -> Sequence[_Ready]:
        """Return connections that have ended first, in that order, and then the others."""
        if len(ready) < 2:
            return ready
        ended = {fd: number for number, (fd, _) in enumerate(self._epoll.poll(0))}
        return sorted(ready, key=lambda each: ended.get(each[0].fd, len(ended)))

    def close(self) -> None:
        """Free the descriptor."""
        self._epoll.close()
