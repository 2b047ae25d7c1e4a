"""`run_on_threads`: collective code on threads of this process, without MPI."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, TypeVar

__all__ = ["ThreadComm", "run_on_threads"]

T = TypeVar("T")


class ThreadComm:
    """The communicator of one of several threads that play ranks.

    Objects are pickled on their way, as MPI does. It is made by `run_on_threads`.
    """

    def __init__(
        self, rank: int, size: int, slots: list[bytes], barrier: threading.Barrier
    ) -> None:
        self._rank = rank
        self._size = size
        self._slots = slots
        self._barrier = barrier

    @property
    def rank(self) -> int:
        """Position of the calling thread."""
        return self._rank

    @property
    def size(self) -> int:
        """Number of threads."""
        return self._size

    def barrier(self) -> None:
        """Return when every thread has called. Collective."""
        self._barrier.wait()

    def bcast(self, obj: Any, root: int = 0) -> Any:
        """Return the root's object on every thread. Collective."""
        return self.allgather(obj)[root]

    def allgather(self, obj: Any) -> list[Any]:
        """Return every thread's object, by rank. Collective."""
        self._slots[self._rank] = pickle.dumps(obj)
        self._barrier.wait()
        gathered = [pickle.loads(content) for content in self._slots]
        self._barrier.wait()
        return gathered

    def gather(self, obj: Any, root: int = 0) -> list[Any] | None:
        """Return every thread's object, by rank, on the root, and None elsewhere. Collective."""
        gathered = self.allgather(obj)
        return gathered if self._rank == root else None

    def scatter(self, objects: Sequence[Any] | None, root: int = 0) -> Any:
        """Return what the root has for this thread. Collective."""
        return self.allgather(objects)[root][self._rank]

    def allreduce(self, obj: Any, op: Callable[[Any, Any], Any]) -> Any:
        """Return every thread's object, joined two by two, lower ranks first. Collective."""
        return reduce(op, self.allgather(obj))


def run_on_threads(
    size: int, function: Callable[[ThreadComm], T], *, timeout_s: float = 60
) -> list[T]:
    """Call a collective function on `size` threads at once, and return what each returned.

    Not collective.

    Parameters
    ----------
    size
        Number of threads.
    function
        Called with the communicator of each.
    timeout_s
        Seconds that a thread waits for the others in a collective.

    Raises
    ------
    BaseException
        What the lowest rank raised that failed by itself.
    """
    barrier = threading.Barrier(size, timeout=timeout_s)
    slots = [b""] * size
    returned: dict[int, T] = {}
    raised: dict[int, BaseException] = {}

    def play(rank: int) -> None:
        try:
            returned[rank] = function(ThreadComm(rank, size, slots, barrier))
        # SystemExit, and what pytest.fail() raises, are no Exception.
        except BaseException as error:
            raised[rank] = error
            barrier.abort()

    threads = [threading.Thread(target=play, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        errors = [raised[rank] for rank in sorted(raised)]
        own = [each for each in errors if not isinstance(each, threading.BrokenBarrierError)]
        raise (own or errors)[0]
    return [returned[rank] for rank in range(size)]
