"""Limits on the connections of a server: their number, and their time without progress."""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios
from typing import Any, NamedTuple, cast

from uvicorn.protocols.http.h11_impl import H11Protocol

from hpctrain import timeouts

MAX_CONNECTIONS = 256


class _Look(NamedTuple):
    """What a connection was doing at some moment."""

    request: Any
    """The last one, None before the first."""
    is_answered: bool
    unread_bytes: int
    """Of responses, which the client has not taken."""

    def is_stuck(self, before: _Look) -> bool:
        """Return whether the client has done nothing since an earlier look."""
        if self.request is not before.request:
            return False
        if self.unread_bytes:
            return self.unread_bytes >= before.unread_bytes > 0
        return self.is_answered and before.is_answered and not before.unread_bytes


class BoundedProtocol(H11Protocol):
    """HTTP/1.1 of uvicorn that closes connections whose client does nothing.

    That is a client that sends no header of a request, or takes no byte of a response. When there
    are too many connections, the oldest of them is closed at once, so none can block new ones.
    """

    _since = 0.0
    _is_aborted = False
    _last_look: _Look
    _next_look: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Record a connection. Not collective."""
        super().connection_made(transport)
        self._since = self.loop.time()
        self._last_look = self._look()
        self._watch_later()
        others = [
            other
            for other in cast("set[BoundedProtocol]", self.connections)
            # One that is aborted is lost only in a later turn of the loop.
            if other is not self and not other._is_aborted
        ]
        if len(others) >= MAX_CONNECTIONS:
            idle = [other for other in others if other.is_idle]
            unread = [other for other in others if other.unread_bytes]
            min(idle or unread or [self], key=lambda other: other._since)._abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection. Not collective."""
        if self._next_look is not None:
            self._next_look.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Begin to wait for the next request. Not collective."""
        self._since = self.loop.time()
        super().on_response_complete()

    def shutdown(self) -> None:
        """Close the connection once its request is answered, or after a while. Not collective."""
        super().shutdown()
        self.loop.call_later(timeouts.SERVER_END_S, self._abort)

    @property
    def is_idle(self) -> bool:
        """Whether it has no unanswered request, and no unread response."""
        return self._is_answered and not self.unread_bytes

    @property
    def unread_bytes(self) -> int:
        """Bytes of responses that the client has not taken."""
        buffered: int = self.transport.get_write_buffer_size()
        try:
            descriptor = self.transport.get_extra_info("socket").fileno()
            # SIOCOUTQ of tcp(7): what the kernel has still to send.
            (queued,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4)))
        except (OSError, ValueError):  # it has been aborted
            return buffered
        return buffered + int(queued)

    @property
    def _is_answered(self) -> bool:
        # None until the first request, unlike uvicorn's annotation.
        cycle: Any = self.cycle
        return cycle is None or cycle.response_complete

    def _abort(self) -> None:
        self._is_aborted = True
        self.transport.abort()

    def _look(self) -> _Look:
        return _Look(self.cycle, self._is_answered, self.unread_bytes)

    def _watch(self) -> None:
        look, before = self._look(), self._last_look
        if look.is_stuck(before):
            self._abort()
            return
        self._last_look = look
        self._watch_later()

    def _watch_later(self) -> None:
        # Until it is lost: one that is being closed first sends what the client has not taken.
        self._next_look = self.loop.call_later(timeouts.REQUEST_HEADERS_S, self._watch)
