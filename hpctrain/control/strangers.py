"""Connections whose other end has not proved itself yet: few at a time, and none for long."""

from __future__ import annotations

import os
import selectors
import socket
from collections.abc import Callable

from hpctrain import timeouts
from hpctrain.control.listener import accept
from hpctrain.control.proof import AGENT, EXECUTOR, NONCE_BYTES, PROOF_BYTES, Credentials, Seal

MAX_STRANGERS = 128
"""Connections that may wait for a proof at the same time. Those of a run's own processes do so for
a round trip, and try again if they had to give way."""
"""Seconds in which a peer that connects over TCP has to prove that it knows the secret."""


class Strangers:
    """Peers that have connected over TCP, until they have proved themselves or are shut out.

    Parameters
    ----------
    selector
        That of the owner, which calls back what is registered.
    credentials
        What they have to know.
    admit
        Takes a connection whose other end has proved itself.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        credentials: Credentials,
        admit: Callable[[socket.socket, Seal], object],
    ) -> None:
        self._selector = selector
        self._credentials = credentials
        self._admit = admit
        self._since: dict[socket.socket, float] = {}

    def accept(self, listener: socket.socket, now: float) -> None:
        """Let the next one prove itself, in place of the one that has not for the longest time."""
        sock = accept(listener)
        if self._since and (sock is None or len(self._since) >= MAX_STRANGERS):
            self._drop(next(iter(self._since)))
        if sock is None:
            return
        sock.setblocking(False)
        nonce = os.urandom(NONCE_BYTES)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.send(nonce)
        except OSError:
            # It has closed the connection, like a port scan.
            sock.close()
            return
        received = bytearray()
        self._since[sock] = now
        self._selector.register(
            sock, selectors.EVENT_READ, lambda _: self._hear(sock, nonce, received)
        )

    def drop_silent(self, now: float) -> None:
        """Free the descriptors of those that have proved nothing for too long."""
        for sock, since in list(self._since.items()):
            if now - since <= timeouts.STRANGER_S:
                return
            self._drop(sock)

    def close(self) -> None:
        """End all connections that have proved nothing yet."""
        for sock in list(self._since):
            self._drop(sock)

    def abandon(self) -> None:
        """Close the connections in a fork of this process, which goes on with them."""
        for sock in self._since:
            sock.close()

    def _hear(self, sock: socket.socket, nonce: bytes, received: bytearray) -> None:
        if sock not in self._since:
            # It had to give way between the look at what is ready and now.
            return
        try:
            chunk = sock.recv(NONCE_BYTES + PROOF_BYTES - len(received))
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        received.extend(chunk)
        if chunk and len(received) < NONCE_BYTES + PROOF_BYTES:
            return
        nonces, proof = nonce + received[:NONCE_BYTES], bytes(received[NONCE_BYTES:])
        if not self._credentials.is_proved(AGENT, nonces, proof):
            self._drop(sock)
            return
        self._forget(sock)
        try:
            sock.send(self._credentials.prove(EXECUTOR, nonces))
        except OSError:
            sock.close()
            return
        self._admit(sock, self._credentials.seal(EXECUTOR, nonces))

    def _forget(self, sock: socket.socket) -> None:
        del self._since[sock]
        self._selector.unregister(sock)

    def _drop(self, sock: socket.socket) -> None:
        self._forget(sock)
        sock.close()
