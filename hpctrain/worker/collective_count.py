"""`CollectiveCount`: how many calls that need all ranks a rank has made, and where it waits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hpctrain.loop_time import COLLECTIVE, LoopTime
from hpctrain.worker.channel import Channel

_LONG_WAIT_S = 1.0


class CollectiveCount:
    """Counts the collective calls of one rank, and reports long waits in them to the executor.

    Parameters
    ----------
    channel
        To the executor.
    loop_time
        Counts how long they take.
    """

    def __init__(self, channel: Channel, loop_time: LoopTime) -> None:
        self._channel = channel
        self._loop_time = loop_time
        self.num_begun = 0
        """Number of the last call, from 1; 0 before the first."""

    @contextmanager
    def enter(self, stage: str) -> Iterator[Callable[[], None]]:
        """Count a call; give what is to be called while this rank waits in it.

        Parameters
        ----------
        stage
            What the ranks do there, for the message of an error.
        """
        self.num_begun += 1
        begun_at, is_reported = time.monotonic(), False

        def wait() -> None:
            nonlocal is_reported
            if not is_reported and time.monotonic() - begun_at > _LONG_WAIT_S:
                is_reported = True
                self._channel.progress("waits", collective=self.num_begun, stage=stage)

        with self._loop_time.waiting(COLLECTIVE):
            yield wait
        if is_reported:
            self._channel.progress("waits", collective=0, stage=stage)
