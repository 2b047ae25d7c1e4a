"""The connections of Gloo in this process, to break them off when one of them is broken."""

from __future__ import annotations

import os
import socket
from collections.abc import Set
from contextlib import suppress


class GlooConnections:
    """Which sockets Horovod has opened.

    Horovod 0.28 keeps those of its process sets open when it shuts down after an error: it resets
    only contexts that are "enabled", which they never are. Ranks that wait for one that has noticed
    an error would then wait for Gloo's timeout.
    """

    def __init__(self) -> None:
        self._opened: Set[tuple[int, str]] = frozenset()
        self.begin()

    def begin(self) -> None:
        """Leave what is open now to others: Horovod opens its own next. Not collective."""
        self._before = _sockets()

    def note(self) -> None:
        """Take what has been opened since the last `begin` for Horovod's. Not collective."""
        self._opened = _sockets() - self._before

    def break_off(self) -> None:
        """End Horovod's connections, so that the other ranks notice. Not collective."""
        for number, inode in self._opened:
            # Gloo may have closed it, and a file that is open now have its number.
            with suppress(OSError):
                if os.readlink(f"/proc/self/fd/{number}") == inode:
                    with socket.socket(fileno=os.dup(number)) as connection:
                        # Those that listen have no peer.
                        connection.getpeername()
                        connection.shutdown(socket.SHUT_RDWR)
        self._opened = frozenset()
        self.begin()


def _sockets() -> Set[tuple[int, str]]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{name}")
            if target.startswith("socket:"):
                found.add((int(name), target))
    return found
