"""`LoopTime`: for how long the training loop of this process waits, and for what.

The time counts in the thread of the loop alone, and once: what a wait contains belongs to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import get_ident
from time import perf_counter_ns
from typing import Generic, TypeVar

T = TypeVar("T")

DATA = 0
"""For the next batch."""
CHECKPOINT = 1
"""In ``report()``, and while a checkpoint is written for it."""
COLLECTIVE = 2
"""For other ranks, in collectives of hpctrain's own."""

# To write three numbers down takes as long as to count three waits.
_RESOLUTION_NS = 1_000_000


class LoopTime:
    """The waits of one training loop, from `start` on."""

    __slots__ = (
        "_encode_at_ns",
        "_encoded",
        "_kind",
        "_sees_data",
        "_since_ns",
        "_thread",
        "_waited_ns",
    )

    def __init__(self) -> None:
        self._thread = 0
        self._waited_ns = [0, 0, 0]
        self._kind = DATA
        self._since_ns = 0
        """When the wait began that goes on; 0 without one."""
        self._sees_data = False
        self._encoded = b""
        self._encode_at_ns = 0
        """From which wait in all on `_encoded` is too old."""

    def start(self) -> None:
        """Count from now on the waits of the thread that calls this. Not collective."""
        self._thread = get_ident()

    def see_data(self) -> bool:
        """Return whether this thread is that of the loop, whose waits for data are seen then.

        Not collective.
        """
        if get_ident() != self._thread:
            return False
        if not self._sees_data:
            self._sees_data, self._encode_at_ns = True, 0
        return True

    def begin(self, kind: int) -> bool:
        """Note that the loop waits. Not collective.

        False where it waits already, or another thread calls: then `end` is not called.
        """
        if self._since_ns or get_ident() != self._thread:
            return False
        self._kind = kind
        self._since_ns = perf_counter_ns()
        return True

    def end(self) -> None:
        """Note that the loop goes on. Not collective."""
        self._waited_ns[self._kind] += perf_counter_ns() - self._since_ns
        self._since_ns = 0

    @contextmanager
    def waiting(self, kind: int) -> Iterator[None]:
        """Count the time of a block. Not collective."""
        is_first = self.begin(kind)
        try:
            yield
        finally:
            if is_first:
                self.end()

    def encode(self) -> bytes:
        """Return a field of a JSON object with the waits up to now, and the comma after it.

        Not collective. Empty before `start`. It has microseconds: for data, in checkpoints, in
        collectives; a millisecond of all may be missing. For data it is null where no iterator of
        hpctrain has given any.
        """
        if not self._thread:
            return b""
        waited = self._waited_ns
        if self._since_ns:
            now = perf_counter_ns()
            waited[self._kind] += now - self._since_ns
            self._since_ns = now
        data, checkpoint, collective = waited
        total = data + checkpoint + collective
        if total >= self._encode_at_ns:
            self._encode_at_ns = total + _RESOLUTION_NS
            seen = b"%d" % (data // 1000) if self._sees_data else b"null"
            numbers = seen, checkpoint // 1000, collective // 1000
            self._encoded = b'"waited":[%s,%d,%d],' % numbers
        return self._encoded


class TimedIterator(Generic[T]):
    """Gives what another iterator gives, and counts how long the loop waits for it.

    Parameters
    ----------
    items
        The other iterator. No item is kept here: the memory of a batch is used again.
    loop_time
        Where it counts.
    """

    __slots__ = ("_loop_time", "_next")

    def __init__(self, items: Iterator[T], loop_time: LoopTime) -> None:
        self._next = items.__next__
        self._loop_time = loop_time

    def __iter__(self) -> Iterator[T]:
        """Return itself."""
        return self

    def __next__(self) -> T:
        """Return the next item."""
        loop_time = self._loop_time
        # As `begin` and `end` do it: their calls would cost half of it all.
        if loop_time._since_ns or get_ident() != loop_time._thread:
            return self._next()
        loop_time._kind = DATA
        loop_time._since_ns = perf_counter_ns()
        try:
            return self._next()
        finally:
            loop_time._waited_ns[DATA] += perf_counter_ns() - loop_time._since_ns
            loop_time._since_ns = 0


_current: LoopTime | None = None


def count_in(loop_time: LoopTime | None) -> None:
    """Say where iterators of data count; None: nowhere. Not collective."""
    global _current
    _current = loop_time


def waiting(kind: int) -> AbstractContextManager[None]:
    """Count the time of a block, if a training loop runs. Not collective."""
    return nullcontext() if _current is None else _current.waiting(kind)


def timed(items: Iterator[T]) -> Iterator[T]:
    """Return an iterator whose waits count, if a training loop of this thread runs.

    Not collective.
    """
    loop_time = _current
    if loop_time is None or not loop_time.see_data():
        return items
    return TimedIterator(items, loop_time)
