"""Sockets between the processes of one user on one node, of which nothing stays when these die.

Their names are not files but abstract (man 7 unix): the kernel forgets them with the listener,
however that ends. Such a name has no owner and no mode, so each end looks whose process the other
one is.
"""

from __future__ import annotations

import os
import select
import socket
import struct
from collections.abc import Callable

from hpctrain import timeouts
from hpctrain.control.link import LinkTimeoutError
from hpctrain.control.listener import accept as next_connection
from hpctrain.own_time import Deadline

_RETRY_INTERVAL_S = 0.01
_CREDENTIALS = struct.Struct("3i")


def new_socket_name() -> str:
    """Return a name that no other process has. Not collective."""
    return f"hpctrain-{os.urandom(8).hex()}"


def listen(name: str, *, backlog: int) -> socket.socket:
    """Return a socket that listens under a name, which must be new on this node. Not collective."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(_address(name))
    listener.listen(backlog)
    return listener


def accept(listener: socket.socket) -> socket.socket | None:
    """Return the next connection; None if it is another user's, which is closed, or is gone.

    Not collective.
    """
    sock = next_connection(listener)
    if sock is None or _is_own(sock):
        return sock
    sock.close()
    return None


def connect(
    name: str, *, timeout_s: float, why_give_up: Callable[[], str] = lambda: ""
) -> socket.socket:
    """Connect to a process of this user, which may not listen yet. Not collective.

    Parameters
    ----------
    why_give_up
        Returns why it is not waited for any longer; empty as long as it is.

    Raises
    ------
    LinkTimeoutError
        If none does in time, or it is not waited for.
    """
    deadline = Deadline(timeout_s)
    while True:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect(_address(name))
            if _is_own(sock):
                return sock
        except ConnectionRefusedError:
            pass
        sock.close()
        if why := why_give_up():
            raise LinkTimeoutError(f"no process of hpctrain listens on {name}, and {why}")
        if deadline.is_over:
            raise LinkTimeoutError(
                f"no process of hpctrain listens on {name} after {timeouts.describe(timeout_s)}"
            )
        select.select([], [], [], _RETRY_INTERVAL_S)


def peer_pid(sock: socket.socket) -> int:
    """Return the process at the other end, which may be gone. Not collective."""
    return _credentials(sock)[0]


def _is_own(sock: socket.socket) -> bool:
    return _credentials(sock)[1] == os.getuid()


def _credentials(sock: socket.socket) -> tuple[int, int, int]:
    content = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(content)
    return pid, uid, gid


def _address(name: str) -> str:
    return f"\0{name}"
