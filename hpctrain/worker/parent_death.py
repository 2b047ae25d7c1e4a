"""Whether the kernel ends this process with its parent (man 2 PR_SET_PDEATHSIG)."""

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
