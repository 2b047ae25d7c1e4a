"""The thread in which an agent relays, beside the one that serves its ranks."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

from hpctrain.control.event_loop import EventLoop
from hpctrain.control.relay import Relay

if TYPE_CHECKING:
    from hpctrain.control.proof import Credentials, Seal

_TURN_S = 1.0


class RelayThread(threading.Thread):
    """A `Relay`, and the loop that calls it back, until one of both ends is gone.

    Parameters
    ----------
    sock, seal
        A connection to the executor, and its MACs.
    credentials
        What both ends of each connection know.
    """

    def __init__(self, sock: socket.socket, seal: Seal, credentials: Credentials) -> None:
        super().__init__(name="hpctrain-relay", daemon=True)
        self.uplink, local = socket.socketpair()
        """The agent's end: what it sends goes to the executor, and what comes is for it."""
        self._loop = EventLoop()
        self.relay = Relay(self._loop, local=local, first=(sock, seal), credentials=credentials)

    def run(self) -> None:
        """Relay until the agent closes its end, or the executor is gone."""
        try:
            while not self.relay.ended:
                self._loop.turn(_TURN_S)
        finally:
            # After an error, too: the agent then sees that it has no executor.
            self.relay.end()
            self._loop.close()
