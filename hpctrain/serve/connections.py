"""Limits on the connections of a server: their number, and their time without a request."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.h11_impl import H11Protocol

from hpctrain import timeouts

MAX_CONNECTIONS = 256
"""Seconds from one request, or the connection, to the header of the next."""


class BoundedProtocol(H11Protocol):
    """HTTP/1.1 of uvicorn that closes idle connections when there are too many.

    It closes the connection that has waited longest for a header, so silent connections cannot
    block new ones.
    """

    _since = 0.0
    _seen: Any = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Record a connection. Not collective."""
        super().connection_made(transport)
        self._since = self.loop.time()
        self.loop.call_later(timeouts.REQUEST_HEADERS_S, self._watch)
        others = [cast(BoundedProtocol, other) for other in self.connections]
        if len(others) > MAX_CONNECTIONS:
            waiting = [other for other in others if other.is_idle]
            min(waiting, key=lambda other: other._since).transport.abort()

    @property
    def is_idle(self) -> bool:
        """Whether it has no unanswered request."""
        # None until the first request, unlike uvicorn's annotation.
        cycle: Any = self.cycle
        return cycle is None or cycle.response_complete

    def _watch(self) -> None:
        if self.transport.is_closing():
            return
        if self.is_idle and self._seen is self.cycle:
            self.transport.abort()
            return
        self._seen = self.cycle
        self.loop.call_later(timeouts.REQUEST_HEADERS_S, self._watch)
