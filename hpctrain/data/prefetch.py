"""Work that is done ahead, by threads, in order; and memory that is used again.

New memory costs more than what is copied into it: the kernel has to find and clear each page first.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from itertools import islice
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import numpy as np

from hpctrain.errors import HpctrainError

_T = TypeVar("_T")
_Task = Callable[[], _T]


MOST_THREADS = 4
MOST_BYTES = 256 * 2**20
"""Of what all threads together work on."""


def spare_threads(bytes_each: int = 0) -> int:
    """Return how many threads can work beside the caller's, one at least.

    Not collective.

    Parameters
    ----------
    bytes_each
        Memory that a task needs.
    """
    spare = len(os.sched_getaffinity(0)) - 1
    return max(min(spare, MOST_THREADS, MOST_BYTES // max(bytes_each, 1)), 1)


def prefetch(
    tasks: Iterable[Callable[[], _T]],
    *,
    threads: int = 1,
    ahead: int = 0,
    timeout_s: float = 600.0,
) -> Iterator[_T]:
    """Yield what tasks return, in order, while the next ones are worked on. Not collective.

    The caller's thread works too, in place of waiting: a result that is ready late is then one of
    several that are worked on. Threads end with the iterator. One that hangs in the kernel is left
    behind; it does not keep the process from ending.

    Parameters
    ----------
    threads
        Threads that work on tasks; 0: each is done by the caller, when it is due.
    ahead
        Tasks that are begun or done while the caller has the result of another one; two more than
        `threads` at least, so that there is always one to begin with.
    timeout_s
        How long to wait for one result, seconds.

    Raises
    ------
    HpctrainError
        If a result takes longer than that.
    """
    if threads == 0:
        for task in tasks:
            yield task()
        return
    queue: SimpleQueue[tuple[Future[_T], Callable[[], _T]] | None] = SimpleQueue()
    pending: deque[Future[_T]] = deque()
    waiting = iter(tasks)

    def submit(count: int) -> None:
        for task in islice(waiting, count):
            pending.append(Future())
            queue.put((pending[-1], task))

    for number in range(threads):
        threading.Thread(
            target=_work, args=(queue,), name=f"hpctrain-prefetch-{number}", daemon=True
        ).start()
    try:
        submit(max(ahead, threads + 2))
        while pending:
            _help_until_done(pending[0], queue, timeout_s)
            submit(1)
            # No name may hold the result while the caller has it: its memory would stay in use.
            yield pending.popleft().result()
    finally:
        for future in pending:
            future.cancel()
        for _ in range(threads):
            queue.put(None)


def _work(queue: SimpleQueue[Any]) -> None:
    while (item := queue.get()) is not None:
        _run(*item)
        # What waits for the next task must not hold the memory of the last one.
        del item


def _run(future: Future[_T], task: Callable[[], _T]) -> None:
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(task())
        except BaseException as error:
            future.set_exception(error)


def _help_until_done(future: Future[Any], queue: SimpleQueue[Any], timeout_s: float) -> None:
    """Work on tasks rather than wait, as long as there are any."""
    while not future.done():
        try:
            _run(*queue.get_nowait())
        except Empty:
            if not wait([future], timeout_s).done:
                raise HpctrainError(
                    f"the next rows were not read within {timeout_s:g} s. The file system may "
                    f"hang: look at it from this node."
                ) from None


class Buffers:
    """Arrays that are given out again once nobody has them, or a part of them, any more.

    Who keeps an array keeps it: another one is made then.

    Parameters
    ----------
    make
        Returns a new array.
    at_most
        How many arrays are kept for later.
    """

    def __init__(self, make: Callable[[], np.ndarray], *, at_most: int = 8) -> None:
        self._make = make
        self._at_most = at_most
        self._arrays: list[np.ndarray] = []
        self._lock = threading.Lock()

    def get(self) -> np.ndarray:
        """Return an array that nobody else has. Not collective."""
        with self._lock:
            arrays = self._arrays
            for index in range(len(arrays)):
                # A part of an array refers to the array, and so do tensors made of it.
                if sys.getrefcount(arrays[index]) == _UNUSED:
                    return arrays[index]
            array = self._make()
            if len(arrays) == self._at_most:
                del arrays[0]
            arrays.append(array)
            return array


_UNUSED = (lambda arrays: sys.getrefcount(arrays[0]))([object()])
"""References to what only a list has, as this Python counts them."""
