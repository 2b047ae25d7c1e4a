"""`Writing`: how fast a rank writes its parts of checkpoints, and when it has a slot for it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hpctrain.errors import CheckpointError
from hpctrain.own_time import wait_for

if TYPE_CHECKING:
    from hpctrain.rundir.bulk import Bulk


class Writing:
    """Limits how fast, and when, a rank writes to the shared filesystem.

    Parameters
    ----------
    rank
        World rank.
    timeout_s
        Seconds to wait for a slot.
    ask
        Sends the executor the number of a slot, and whether it is wanted, or over.
    """

    def __init__(self, *, rank: int, timeout_s: float, ask: Callable[[int, bool], None]) -> None:
        self._rank = rank
        self._timeout_s = timeout_s
        self._ask = ask
        self._max_writers: int | None = None
        self._max_bytes_per_s: float | None = None
        self._bulk: Bulk | None = None
        self._one_at_a_time = threading.Lock()
        self._change = threading.Condition()
        self._asked = 0
        self._granted = 0

    def limit(self, *, max_writers: int | None, max_bytes_per_s: float | None) -> None:
        """Set limits; to be called before anything is written.

        Parameters
        ----------
        max_writers
            Ranks that may write at a time; None is all of them.
        max_bytes_per_s
            How fast this one may write.
        """
        self._max_writers = max_writers
        self._max_bytes_per_s = max_bytes_per_s

    @property
    def bulk(self) -> Bulk:
        """How this rank copies."""
        if self._bulk is None:
            from hpctrain.bulk.pace import Pace
            from hpctrain.rundir.bulk import Bulk

            limit = self._max_bytes_per_s
            self._bulk = Bulk(None if limit is None else Pace(limit))
        return self._bulk

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Write inside of this: it waits until fewer than `max_writers` ranks do.

        Not collective, and nothing in it may wait for other ranks: they may get a slot only after
        this one's.

        Raises
        ------
        CheckpointError
            If it does not come in time.
        """
        if self._max_writers is None:
            yield
            return
        with self._one_at_a_time:
            self._asked += 1
            self._ask(self._asked, True)
            try:
                self._wait()
                yield
            finally:
                self._ask(self._asked, False)

    def begin(self, number: int) -> None:
        """Record that this rank has its slot; called from the thread of the link."""
        with self._change:
            self._granted = number
            self._change.notify_all()

    def _wait(self) -> None:
        with self._change:
            # What is granted after the timeout is not for the next slot.
            if wait_for(self._change, lambda: self._granted == self._asked, self._timeout_s):
                return
        raise CheckpointError(
            f"rank {self._rank} waited {self._timeout_s:.0f} s for a slot to write: "
            f"{self._max_writers} others did, SyncConfig(max_writers={self._max_writers}). "
            f"SyncConfig(sync_timeout=...) sets how long to wait."
        )
