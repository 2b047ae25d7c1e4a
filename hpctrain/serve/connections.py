"""Connections of a server: how many there may be, and how long one may stay without a request."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.h11_impl import H11Protocol

from hpctrain import timeouts

MAX_CONNECTIONS = 256
"""Seconds from one request, or the connection, to the header of the next."""


class BoundedProtocol(H11Protocol):
    """HTTP/1.1 of uvicorn, in which nobody holds the place of others without a request.

    Of too many connections, that one is closed which has waited longest for a header: so a new one
    gets in, however many silent ones there are.
    """

    _since = 0.0
    _seen: Any = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take note of a connection. Not collective."""
        super().connection_made(transport)
        self._since = self.loop.time()
        self.loop.call_later(timeouts.REQUEST_HEADERS_S, self._watch)
        others = [cast(BoundedProtocol, other) for other in self.connections]
        if len(others) > MAX_CONNECTIONS:
            waiting = [other for other in others if other.is_idle]
            min(waiting, key=lambda other: other._since).transport.abort()

    @property
    def is_idle(self) -> bool:
        """Whether it has no request that is not answered."""
        # None until the first of them; uvicorn's annotation does not say so.
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
