"""What a fork server, its owner, its clients and executors send each other."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import struct
from typing import Any

from hpctrain import timeouts
from hpctrain.control import local_socket
from hpctrain.own_time import LOOK_INTERVAL_S, Deadline

# As in hpctrain.worker.fork_client.
READY, FORKED, ENDED, REFUSED = b"R", b"F", b"E", b"X"
AWAIT_END = b"W"
"""What an executor sends in place of a client, before the command of the ranks that it means."""
IDLE = b"I"
"""What it is sent once none of them is left."""
ASK_END = b"S"
"""What it sends before the pid of a rank and its command. Once that has ended it is sent its wait
status, or nothing where that says nothing of why: its client was ended first, and the rank with
it."""
STATUS = struct.Struct("=i")
"""A wait status, as it travels."""
ASK_IDLE, ASK_RANKS = b"i", b"n"
"""What the owner of a server sends it."""


def refuse_all(listener: socket.socket, reason: str, *, num_clients: int) -> None:
    """Send so many clients why none of them is served, as far as they come in time.

    Not collective. Otherwise those of a step that come later would wait for another server.
    """
    deadline = Deadline(timeouts.FORK_CLIENTS_S)
    poller = select.poll()
    poller.register(listener, select.POLLIN)
    while num_clients and not deadline.is_over:
        if not poller.poll(LOOK_INTERVAL_S * 1000):
            continue
        if (sock := local_socket.accept(listener)) is not None:
            refuse(sock, reason)
            num_clients -= 1


def refuse(client: socket.socket, reason: str) -> None:
    """Send a client why no rank is forked for it, and close it. Not collective. Never raises."""
    with client, contextlib.suppress(OSError):
        client.sendall(REFUSED + reason.encode(errors="replace"))


def tell(owner: socket.socket, *, flags: int = 0, **content: Any) -> None:
    """Send the owner of a server a line, if it still reads. Not collective. Never raises."""
    with contextlib.suppress(OSError):
        # Of such a line the kernel takes all or nothing.
        owner.sendall(json.dumps(content).encode() + b"\n", flags)
