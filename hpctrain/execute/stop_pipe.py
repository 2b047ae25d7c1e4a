"""A pipe by which a tuner lets an executor on its host look for a stop request at once.

It is the standard input of the executor, which begins with a byte from it. The request itself is a
file, as that of any run: an executor whose tuner has died looks for one every two seconds. That the
executor closes it lets the tuner look for its end at once.
"""

from __future__ import annotations

import os
import select
from collections.abc import Collection
from contextlib import suppress
from typing import BinaryIO

_NEWS = b"\n"
_MOST_BYTES = 4096


class StopPipe:
    """The end of the process that has started an executor."""

    def __init__(self) -> None:
        self._pipe: BinaryIO | None = None

    def keep(self, pipe: BinaryIO) -> None:
        """Keep the open pipe to the standard input of an executor. Not collective."""
        self.close()
        self._pipe = pipe

    def notify(self) -> None:
        """Let the executor look for a stop request now, if it still can. Not collective."""
        if self._pipe is None:
            return
        try:
            self._pipe.write(_NEWS)
        except OSError:
            # It has ended, or has closed its standard input.
            self.close()

    def close(self) -> None:
        """Let go of the pipe. Not collective. The executor goes on."""
        if self._pipe is not None:
            with suppress(OSError):
                self._pipe.close()
            self._pipe = None

    def fileno(self) -> int:
        """Return the descriptor of the pipe, or -1 without one."""
        return -1 if self._pipe is None else self._pipe.fileno()


def await_end(pipes: Collection[StopPipe], timeout_s: float) -> list[StopPipe]:
    """Wait until an executor closes its end, or the time is over; return the pipes of those.

    Not collective. An executor that had closed it before counts too.
    """
    poller = select.poll()
    by_descriptor = {pipe.fileno(): pipe for pipe in pipes if pipe.fileno() >= 0}
    for descriptor in by_descriptor:
        # That the other end is closed is found without being asked for.
        poller.register(descriptor, 0)
    return [by_descriptor[descriptor] for descriptor, _ in poller.poll(timeout_s * 1000)]


class StopListener:
    """The end of the executor.

    Parameters
    ----------
    descriptor
        Of the pipe; None without one.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        self._descriptor = descriptor

    def close(self) -> None:
        """Let the tuner look for the end of the run. Not collective."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def was_notified(self) -> bool:
        """Return whether there is news since the last call. Not collective. It never waits."""
        if self._descriptor is None:
            return False
        poller = select.poll()
        poller.register(self._descriptor, select.POLLIN)
        if not poller.poll(0):
            return False
        try:
            has_news = bool(os.read(self._descriptor, _MOST_BYTES))
        except OSError:
            has_news = False
        if not has_news:
            # The other end is closed.
            self._descriptor = None
        return has_news
