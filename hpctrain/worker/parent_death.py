"""The end of the process that has started this one.

The kernel ends a child with its parent where it is asked to (man 2 PR_SET_PDEATHSIG). What
launchers start in between looks for the process that its environment names.
"""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_is_bound = False


def end_with(parent: int) -> None:
    """Let the kernel kill this process when its parent ends, however that happens.

    Not collective. A fork of this process is not killed with it.

    Parameters
    ----------
    parent
        Process id; this process ends at once if it is gone already.
    """
    global _is_bound
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    _is_bound = True


def outlive_parent() -> None:
    """Undo `end_with`, if it was called. Not collective. What a launcher has set stays."""
    global _is_bound
    if _is_bound:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0)
        _is_bound = False


def mark() -> str:
    """Return a text by which a process of this node finds this one. Not collective."""
    return f"{os.getpid()} {_pid_namespace()}"


def has_ended(marked: str) -> bool:
    """Return whether the process of a `mark` has ended. Not collective.

    False where its process id would mean another process, which is so inside a container.
    """
    pid, _, namespace = marked.partition(" ")
    return namespace == _pid_namespace() and not os.path.exists(f"/proc/{pid}")


def _pid_namespace() -> str:
    return os.readlink("/proc/self/ns/pid")
