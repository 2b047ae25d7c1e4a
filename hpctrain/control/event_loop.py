"""Callbacks for sockets, for times, and for what other threads have found.

asyncio takes as long to import as all that an agent needs.
"""

from __future__ import annotations

import heapq
import itertools
import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import HasFileno

    from hpctrain.control.wire import FrameSocket

OnEvents = Callable[[int], object]
"""Gets the events of a socket: whether it can be read, written, or both. Another one that is called
before it in the same turn may have closed the socket."""


def events_of(frames: FrameSocket, *, is_read: bool) -> int:
    """Return what to wait for: that it can be written, if something is left, and read. Pure."""
    events = selectors.EVENT_READ if is_read else 0
    return events | (selectors.EVENT_WRITE if frames.pending_bytes else 0)


class EventLoop:
    """One thread's callbacks, in the order in which they become due."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        """A callback, which gets the events, is the data of what is registered."""
        self._timers: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()
        self._posted: deque[Callable[[], object]] = deque()
        self._lock = threading.Lock()
        self._is_closed = False
        self._wake_reader, self._wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.selector.register(self._wake_reader, selectors.EVENT_READ, self._wake)

    def watch(self, source: HasFileno, events: int, on_events: OnEvents) -> None:
        """Call back for these events of a socket, and for no others; 0 is for none."""
        key = self.selector.get_map().get(source)
        if key is None:
            if events:
                self.selector.register(source, events, on_events)
        elif not events:
            self.selector.unregister(source)
        elif key.events != events:
            self.selector.modify(source, events, on_events)

    def forget(self, source: HasFileno) -> None:
        """Call back for a socket no more. To be called before it is closed."""
        if source in self.selector.get_map():
            self.selector.unregister(source)

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> None:
        """Call back after some seconds."""
        due = time.monotonic() + delay_s
        heapq.heappush(self._timers, (due, next(self._numbers), callback))

    def post(self, callback: Callable[[], object]) -> None:
        """Call back from the loop's thread. For any thread."""
        with self._lock:
            if self._is_closed:
                # The descriptor may be another file's by now.
                return
            self._posted.append(callback)
            with suppress(BlockingIOError):
                os.write(self._wake_writer, b"x")

    def turn(self, timeout_s: float) -> None:
        """Wait for what is due, and call it."""
        if self._timers:
            timeout_s = min(timeout_s, max(0.0, self._timers[0][0] - time.monotonic()))
        for key, events in self.selector.select(timeout_s):
            key.data(events)
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            heapq.heappop(self._timers)[2]()

    def close(self) -> None:
        """Forget all callbacks. What is registered stays open."""
        with self._lock:
            self._is_closed = True
            self.selector.close()
            os.close(self._wake_reader)
            os.close(self._wake_writer)

    def _wake(self, _: int) -> None:
        os.read(self._wake_reader, 2**16)
        while self._posted:
            self._posted.popleft()()
