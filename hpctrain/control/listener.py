"""Accepting what others connect, whatever state they or this machine are in."""

from __future__ import annotations

import errno
import select
import socket

from hpctrain.control.interfaces import LOOPBACK, ipv4_addresses, is_loopback

_PAUSE_S = 0.05
_OWN_MISTAKES = (errno.EBADF, errno.EINVAL, errno.ENOTSOCK)


def accept(listener: socket.socket) -> socket.socket | None:
    """Return the next connection; None if it is gone, or if there is no room for it now.

    Not collective. A process or a machine that has no descriptors left (EMFILE, ENFILE) leaves it
    in the backlog, and gets a moment to have some again.
    """
    try:
        return listener.accept()[0]
    except BlockingIOError:
        return None
    except OSError as error:
        if error.errno in _OWN_MISTAKES:
            raise
        select.select([], [], [], _PAUSE_S)
        return None


def listen_tcp(*, backlog: int, only_here: bool = False) -> tuple[socket.socket, list[str]]:
    """Return a socket that listens on a free port, and the addresses to try. Not collective.

    Parameters
    ----------
    backlog
        Connections that may wait to be accepted.
    only_here
        Whether all that connect are on this machine.
    """
    # To another node a loopback address is that node. Without any other there is none.
    own = [] if only_here else [a for a in ipv4_addresses().values() if not is_loopback(a)]
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind(("" if own else LOOPBACK, 0))
    listener.listen(backlog)
    port = listener.getsockname()[1]
    hosts = [socket.gethostname(), *own] if own else [LOOPBACK]
    return listener, [f"{host}:{port}" for host in hosts]
