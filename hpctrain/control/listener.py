"""Accepting what others connect, whatever state they or this machine are in."""

from __future__ import annotations

import errno
import select
import socket

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
