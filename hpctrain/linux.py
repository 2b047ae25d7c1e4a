"""Calls of Linux that a Python may lack.

Conda's, and others that run on old systems too, are compiled against headers of such a system:
then `os` and `signal` have no function for what the kernel has had since.
"""

from __future__ import annotations

import os
import signal

# The same on all architectures that MPI libraries are built for.
_PIDFD_SEND_SIGNAL, _PIDFD_OPEN = 424, 434


def pidfd_open(pid: int) -> int:
    """Return a descriptor of a process; a child does not inherit it.

    Not collective.

    Raises
    ------
    OSError
        If there is no such process; if Linux is older than 5.3.
    """
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(pid)
    return _call(_PIDFD_OPEN, pid, 0)


def pidfd_send_signal(pidfd: int, number: int) -> None:
    """Send a signal to the process of a descriptor. Not collective.

    Raises
    ------
    OSError
        If it has ended.
    """
    if hasattr(signal, "pidfd_send_signal"):
        signal.pidfd_send_signal(pidfd, number)
    else:
        _call(_PIDFD_SEND_SIGNAL, pidfd, number, 0, 0)


def memory_file(name: str) -> int:
    """Return the descriptor of a new file that no other process sees; a child does not inherit it.

    Not collective. It is in memory, or where temporary files are.

    Parameters
    ----------
    name
        For those who look at the descriptors of this process.
    """
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    import tempfile

    descriptor, path = tempfile.mkstemp(prefix=f"{name}-")
    os.unlink(path)
    return descriptor


def _call(number: int, *arguments: int) -> int:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    result: int = libc.syscall(*map(ctypes.c_long, (number, *arguments)))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result
