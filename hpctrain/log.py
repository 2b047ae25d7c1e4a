"""All messages of hpctrain itself for a person.

A full disk, a closed pipe or a stale log file of the job must not end a run whose ranks and
checkpoints may be elsewhere, so nothing here raises. Important messages also belong in the ledger
or in an error.
"""

from __future__ import annotations

import functools
import os
import stat
import sys
import time
from typing import TextIO

from hpctrain.printable import show_controls


def log(message: str, *, to: TextIO | None = None, new_line: bool = False) -> None:
    """Print a line that begins with ``hpctrain:``. Not collective. Never raises.

    Parameters
    ----------
    message
        The text. It may have several lines.
    to
        Where to; None is the standard error output.
    new_line
        Whether to begin a new line: a terminal has just shown ``^C``.
    """
    _print(f"{new_line * chr(10)}hpctrain: {message}", to)


@functools.cache
def log_once(message: str) -> None:
    """Log a message once in this process. Not collective.

    For configurations, which are made again wherever they are changed or read.
    """
    log(message)


def log_traceback(error: BaseException | str) -> None:
    """Print the traceback of an exception, or a given one. Not collective. Never raises."""
    if isinstance(error, BaseException):
        error = _format(error)
    _print(error.rstrip("\n"), None)


def _format(error: BaseException) -> str:
    try:
        # Each node starts an agent, which seldom needs it.
        import traceback

        return "".join(traceback.format_exception(error))
    except Exception:
        # No descriptor is left, or the filesystem of Python is away.
        return f"{type(error).__name__}: {error}"


def flush_output() -> None:
    """Flush the output of this process as far as possible. Never raises."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            continue


def drain_output(*, timeout_s: float = 1.0) -> None:
    """Wait until the readers of this process's output pipes have read everything.

    Not collective. Never raises. A launcher that ends all ranks at once drops unread bytes in a
    pipe.
    """
    flush_output()
    # Not own_time.Deadline: that module is on the same layer.
    deadline = time.monotonic() + timeout_s
    for descriptor in (1, 2):
        while _waits_in_pipe(descriptor) and time.monotonic() < deadline:
            time.sleep(0.01)


def _waits_in_pipe(descriptor: int) -> bool:
    """Return whether a pipe holds unread bytes."""
    import fcntl
    import termios

    left = bytearray(4)
    try:
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            return False
        fcntl.ioctl(descriptor, termios.FIONREAD, left)
    except OSError:
        return False
    return any(left)


def _print(text: str, to: TextIO | None) -> None:
    try:
        text = show_controls(text, keep_colours=True)
        print(text, file=sys.stderr if to is None else to, flush=True)
    # ENOSPC, EPIPE, ESTALE; ValueError of a closed file; RuntimeError of a signal handler that
    # prints while the main thread does.
    except Exception:
        return
