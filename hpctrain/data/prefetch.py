"""Reading ahead with threads, in order; and reuse of memory.

New memory costs more than copying into it: the kernel has to find and clear each page first.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar, cast

import numpy as np

from hpctrain import timeouts
from hpctrain.data.open_files import kept_open
from hpctrain.errors import HpctrainError
from hpctrain.own_time import LOOK_INTERVAL_S, Deadline

_T = TypeVar("_T")

MOST_THREADS = 4
MOST_BYTES = 256 * 2**20
"""Memory of all tasks that are begun ahead, unless one alone needs more."""


def spare_threads(bytes_each: int = 0) -> int:
    """Return how many threads can work besides the caller's, at least one.

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
    bytes_each: int = 0,
    timeout_s: float = timeouts.ROWS_READ_S,
) -> Iterator[_T]:
    """Yield the results of tasks, in order, while threads work on the next ones. Not collective.

    The caller's thread works on tasks too while it waits for a result. Threads end with the
    iterator. A thread that hangs in the kernel is abandoned; it is a daemon, so the process can
    end.

    Parameters
    ----------
    threads
        Threads that work on tasks; with 0 the caller runs each task when its result is due.
    ahead
        Tasks that may be begun or done before their result is due; at least `threads` + 2, so that
        no thread runs out of work, unless they need more memory than `MOST_BYTES`.
    bytes_each
        Memory that a task, or its result, needs.
    timeout_s
        How long to wait for one result, seconds, without the time in `clock_stopped`.

    Raises
    ------
    HpctrainError
        If a result takes longer than that.
    """
    with kept_open():
        if threads:
            most = max(MOST_BYTES // max(bytes_each, 1), 1)
            yield from _done_by_threads(
                tasks, threads, max(ahead, min(threads + 2, most)), timeout_s
            )
        else:
            for task in tasks:
                yield task()


@contextmanager
def clock_stopped() -> Iterator[None]:
    """Let the current task take as long as it needs: it does not read, but computes.

    Not collective. Outside of a task it has no effect. What is read in it, with `prefetch`, has a
    clock of its own.
    """
    job: _Job[Any] | None = getattr(_current, "job", None)
    if job is None:
        yield
        return
    before, job.clock_is_stopped = job.clock_is_stopped, True
    try:
        yield
    finally:
        job.clock_is_stopped = before


_current = threading.local()
"""The job that a thread works on."""


def _done_by_threads(
    tasks: Iterable[Callable[[], _T]], threads: int, ahead: int, timeout_s: float
) -> Iterator[_T]:
    queue: SimpleQueue[_Job[_T] | None] = SimpleQueue()
    pending: deque[_Job[_T]] = deque()
    jobs = map(_Job, tasks)

    def submit(count: int) -> None:
        for job in islice(jobs, count):
            pending.append(job)
            queue.put(job)

    for number in range(threads):
        threading.Thread(
            target=_work, args=(queue,), name=f"hpctrain-prefetch-{number}", daemon=True
        ).start()
    try:
        submit(ahead)
        while pending:
            _help_until_done(pending[0], queue, timeout_s)
            submit(1)
            # No variable may refer to the result while the caller uses it, or its memory could not
            # be reused.
            yield pending.popleft().result()
    finally:
        while (job := _next_job(queue)) is not None:
            job.leave_out()
        for _ in range(threads):
            queue.put(None)
        # Reads in progress still use their memory and files. Do not wait long for one that hangs.
        deadline = Deadline(LOOK_INTERVAL_S)
        for job in pending:
            job.wait(deadline.left_s)


class _Job(Generic[_T]):
    """A task, and its result or error.

    It uses a lock: concurrent.futures.Future takes as long as copying 100 KiB.
    """

    def __init__(self, task: Callable[[], _T]) -> None:
        self._task = task
        self.clock_is_stopped = False
        """Whether its time limit does not run now."""
        self._result: _T | None = None
        self._error: BaseException | None = None
        self._unfinished = threading.Lock()
        self._unfinished.acquire()

    def run(self) -> None:
        # A task may itself read ahead, and work on the jobs of that.
        outer, _current.job = getattr(_current, "job", None), self
        try:
            self._result = self._task()
        except BaseException as error:
            self._error = error
            if not isinstance(error, Exception):
                # KeyboardInterrupt must not wait until the result is due.
                raise
        finally:
            _current.job = outer
            self._unfinished.release()

    def leave_out(self) -> None:
        self._unfinished.release()

    def is_done(self) -> bool:
        return not self._unfinished.locked()

    def wait(self, timeout_s: float) -> bool:
        done = self._unfinished.acquire(timeout=timeout_s)
        if done:
            self._unfinished.release()
        return done

    def result(self) -> _T:
        if self._error is not None:
            raise self._error
        return cast("_T", self._result)


def _work(queue: SimpleQueue[_Job[Any] | None]) -> None:
    while (job := queue.get()) is not None:
        try:
            job.run()
        except BaseException:
            # Raised where the result is taken.
            pass
        # Release the memory of this job before waiting for the next one.
        del job


def _next_job(queue: SimpleQueue[_Job[_T] | None]) -> _Job[_T] | None:
    try:
        return queue.get_nowait()
    except Empty:
        return None


def _help_until_done(job: _Job[_T], queue: SimpleQueue[_Job[_T] | None], timeout_s: float) -> None:
    """Work on jobs rather than wait, as long as there are any."""
    deadline: Deadline | None = None
    while not job.is_done():
        other = _next_job(queue)
        if other is not None:
            other.run()
            deadline = None
            continue
        if deadline is None or job.clock_is_stopped:
            deadline = Deadline(timeout_s)
        if not job.wait(min(deadline.left_s, LOOK_INTERVAL_S)) and deadline.is_over:
            raise HpctrainError(
                f"the next rows were not read within "
                f"{timeouts.describe(timeout_s)}. The file system may hang: check it on this node."
            )


class Buffers:
    """A pool of arrays that are reused once no reference to any part of them is left.

    An array that is still in use is never reused; the pool makes another one.

    Parameters
    ----------
    make
        Returns a new array.
    at_most
        How many arrays are kept for later.
    """

    def __init__(self, make: Callable[[], np.ndarray], *, at_most: int = 16) -> None:
        self._make = make
        self._at_most = at_most
        self._arrays: list[np.ndarray] = []
        self._lock = threading.Lock()

    def get(self) -> np.ndarray:
        """Return an array without other references. Not collective."""
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
"""Reference count, in this Python, of an object that only a list refers to."""
