"""A pair of sockets between a tuner and the executor of a trial on its host.

The tuner notifies the executor of a stop request, and sends up to which report it has decided. The
executor sends up to which report decisions are due, and closes its end when the run has ended. Each
message wakes the other side: neither polls.

The executor's end is its standard input, which begins with a byte. A stop request itself is a file,
as that of any run: an executor whose tuner has died looks for one every two seconds, and its ranks
wait for no decisions.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

_STOP = b"stop"
_DECIDES = b"decides"
_DECIDED = b"decided"
_REPORTED = b"reported"
_MOST_BYTES = 256

Moment = tuple[int, int]
"""Number of an attempt, and of a report in it."""


class Watcher(Protocol):
    """What calls back when a descriptor becomes readable: `WorkerGroup`."""

    def watch(self, descriptor: int, callback: Callable[[], None]) -> None:
        """Call back."""

    def unwatch(self, descriptor: int) -> None:
        """Undo `watch`."""


def make_pair() -> tuple[socket.socket, socket.socket]:
    """Return the two ends. Not collective. Each message arrives as a whole, or not at all."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class TunerEnd:
    """The end of the process that has started an executor."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self.reported: Moment = (0, 0)
        """Up to which report all ranks have made theirs, and checkpoints are committed."""

    @property
    def is_open(self) -> bool:
        """Whether the executor may be there."""
        return self._socket is not None

    def keep(self, end: socket.socket) -> None:
        """Keep the socket to the standard input of an executor. Not collective."""
        self.close()
        self._socket, self.reported = end, (0, 0)

    def promise_decisions(self) -> None:
        """Send that each report is decided on. Not collective."""
        self._send(_DECIDES)

    def decide(self, moment: Moment) -> None:
        """Send that the trial goes on after a report. Not collective."""
        self._send(_DECIDED + b" %d %d" % moment)

    def notify_of_stop(self) -> None:
        """Send that there is a stop request, if the executor still runs. Not collective."""
        self._send(_STOP)

    def receive(self) -> None:
        """Take in what the executor has sent. Not collective. It never waits."""
        while self._socket is not None and (message := _receive(self._socket)) is not None:
            if not message:
                self.close()
            elif message.startswith(_REPORTED):
                self.reported = max(self.reported, _moment_of(message))

    def close(self) -> None:
        """Let go of the socket. Not collective. The executor goes on."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def fileno(self) -> int:
        """Return the descriptor of the socket, or -1 without one."""
        return -1 if self._socket is None else self._socket.fileno()

    def _send(self, message: bytes) -> None:
        # One that does not read has much that it can act on already.
        with suppress(BlockingIOError):
            try:
                if self._socket is not None:
                    self._socket.send(message, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            except (BrokenPipeError, ConnectionResetError):
                # It has ended, or has closed its end.
                self.close()


def await_news(ends: Collection[TunerEnd], timeout_s: float) -> list[TunerEnd]:
    """Wait until an executor has sent something or closed its end, or the time is over.

    Not collective. Returns the ends of those, also if they had closed before.
    """
    poller = select.poll()
    by_descriptor = {end.fileno(): end for end in ends if end.is_open}
    for descriptor in by_descriptor:
        poller.register(descriptor, select.POLLIN)
    return [by_descriptor[descriptor] for descriptor, _ in poller.poll(timeout_s * 1000)]


class ExecutorEnd:
    """The end of the executor.

    Parameters
    ----------
    descriptor
        Of the socket; None without a tuner.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        self._socket = None if descriptor is None else socket.socket(fileno=descriptor)
        self._decides = False
        self._decided: Moment = (0, 0)
        self._unwatch: Callable[[], None] = lambda: None
        self._has_stop_news = False

    @property
    def decides(self) -> bool:
        """Whether the tuner is there, and decides on each report."""
        return self._decides and self._socket is not None

    def decided_on(self, attempt: int) -> int:
        """Return after which report of an attempt the trial goes on; 0 if none is decided on."""
        return self._decided[1] if self._decided[0] == attempt else 0

    def send_reported(self, moment: Moment) -> bool:
        """Send up to which report decisions are due; return whether there was room. Not collective.

        Parameters
        ----------
        moment
            As `TunerEnd.reported`.
        """
        if self._socket is None:
            return False
        message = _REPORTED + b" %d %d" % moment
        try:
            self._socket.send(message, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return False
        except OSError:
            self.close()
            return False
        return True

    def receive(self) -> None:
        """Take in what the tuner has sent. Not collective. It never waits."""
        while self._socket is not None and (message := _receive(self._socket)) is not None:
            if not message:
                self.close()
            elif message == _STOP:
                self._has_stop_news = True
            elif message == _DECIDES:
                self._decides = True
            elif message.startswith(_DECIDED):
                self._decided = max(self._decided, _moment_of(message))

    def was_notified(self) -> bool:
        """Take in what the tuner has sent; return whether there is news of a stop.

        Not collective.
        """
        self.receive()
        was_notified, self._has_stop_news = self._has_stop_news, False
        return was_notified

    @contextmanager
    def watched_by(self, watcher: Watcher) -> Iterator[None]:
        """Let what the tuner sends end a wait for the ranks, for the time of the block."""
        if self._socket is not None:
            descriptor = self._socket.fileno()
            watcher.watch(descriptor, self.receive)
            self._unwatch = lambda: watcher.unwatch(descriptor)
        try:
            yield
        finally:
            self._end_watch()

    def close(self) -> None:
        """Close the socket, which notifies the tuner of the end of the run. Not collective."""
        if self._socket is not None:
            self._end_watch()
            self._socket.close()
            self._socket = None

    def _end_watch(self) -> None:
        unwatch, self._unwatch = self._unwatch, lambda: None
        unwatch()


def _receive(end: socket.socket) -> bytes | None:
    """Return the next message; empty if the other end is closed, and None if there is none now."""
    try:
        return end.recv(_MOST_BYTES, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return None
    except OSError:
        # It was closed before all was read that this process had sent.
        return b""


def _moment_of(message: bytes) -> Moment:
    _, attempt, report = message.split()
    return int(attempt), int(report)
