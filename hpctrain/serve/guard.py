"""Checks before the body of a request is read: the token, and limits."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from hpctrain import timeouts

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

OPEN_PATHS = frozenset({"/healthz", "/readyz", "/docs", "/openapi.json"})
"""Paths that are answered without a token, under any load."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of one server."""

    body_bytes: int = 8 << 20
    """Bytes of one request."""
    body_s: float = timeouts.REQUEST_BODY_S
    """Seconds in which the whole request must arrive."""
    discarded_bytes: int = 64 << 20
    """Bytes beyond `body_bytes` that are read, to nowhere, from a client that may send a request.
    Most clients look for an answer only when they have sent all."""
    requests: int = 64
    """Requests in progress; further ones are answered with 503."""


class Guard:
    """ASGI middleware that passes only permitted requests on.

    Parameters
    ----------
    app
        The application that answers them.
    token
        What a request has to carry as ``Authorization: Bearer TOKEN``; None lets everybody in.
    limits
        Of the server.
    """

    def __init__(self, app: Any, *, token: str | None, limits: Limits) -> None:
        self._app = app
        self._expected = None if token is None else token.encode()
        self._limits = limits
        self._requests = 0

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on. Not collective."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        if not self._knows_token(headers.get(b"authorization", b"")):
            refuse = (b"www-authenticate", b"Bearer")
            await _answer(send, 401, "a valid token is needed", [refuse])
        elif self._requests >= self._limits.requests:
            text = f"{self._requests} requests are being answered; try again"
            await _answer(send, 503, text, [(b"retry-after", b"1")])
        else:
            self._requests += 1
            try:
                await self._take(scope, headers, receive, send)
            finally:
                self._requests -= 1

    async def _take(
        self, scope: dict[str, Any], headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        given = headers.get(b"content-length", b"0")
        length = int(given) if given.isdigit() else 0
        if length <= self._limits.body_bytes:
            await self._app(scope, self._bounded(receive), send)
            return
        # A client that asks first, as curl does, has not begun to send.
        is_sent = headers.get(b"expect", b"").lower() != b"100-continue"
        if is_sent and length <= self._limits.body_bytes + self._limits.discarded_bytes:
            await self._discard(receive, length, self._deadline())
        await _answer(send, 413, self._too_large())

    async def _discard(self, receive: Receive, num_bytes: int, deadline: float) -> None:
        """Read so many bytes of a body, or up to its end."""
        while num_bytes > 0:
            left = deadline - asyncio.get_running_loop().time()
            try:
                message = await asyncio.wait_for(receive(), max(left, 0.0))
            except asyncio.TimeoutError:
                return
            num_bytes -= len(message.get("body", b""))
            if not message.get("more_body", False):
                return

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._limits.body_s

    def _knows_token(self, authorization: bytes) -> bool:
        if self._expected is None:
            return True
        scheme, _, given = authorization.partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(given.strip(), self._expected)

    def _bounded(self, receive: Receive) -> Receive:
        """Return a reader for a body within the limits of length and time."""
        # Installed with FastAPI.
        from starlette.exceptions import HTTPException

        deadline = self._deadline()
        is_complete, size = False, 0

        async def read() -> Message:
            nonlocal is_complete, size
            if is_complete:
                return await receive()
            left = deadline - asyncio.get_running_loop().time()
            try:
                message = await asyncio.wait_for(receive(), max(left, 0.0))
            except asyncio.TimeoutError:
                text = f"the body did not come within {timeouts.describe(self._limits.body_s)}"
                raise HTTPException(408, text, headers={"connection": "close"}) from None
            size += len(message.get("body", b""))
            is_complete = not message.get("more_body", False)
            if size > self._limits.body_bytes:
                if not is_complete:
                    await self._discard(receive, self._limits.discarded_bytes, deadline)
                raise HTTPException(413, self._too_large(), headers={"connection": "close"})
            return message

        return read

    def _too_large(self) -> str:
        return (
            f"the body has more than {self._limits.body_bytes} bytes. Send fewer rows, or score "
            f"files with hpctrain predict"
        )


async def _answer(
    send: Send, status: int, detail: str, headers: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    """Answer without reading more of the request."""
    import json

    content = json.dumps({"detail": detail}).encode()
    more = [(b"content-type", b"application/json"), (b"connection", b"close")]
    more.append((b"content-length", str(len(content)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": [*headers, *more]})
    await send({"type": "http.response.body", "body": content})
