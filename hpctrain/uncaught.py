"""How a process shows an uncaught error, and its exit code.

Python's own hook prints forty frames of hpctrain for one mistake of the user. The hook here is
installed with ``import hpctrain``, unless the process has another one already, and is only for our
errors and for those that `show_as` has marked. Debuggers and pytest do not use it, and exceptions
keep all their frames; IPython looks for ``_render_traceback_``.
"""

from __future__ import annotations

import os
import sys
import time
from types import TracebackType
from typing import Any

from hpctrain import environ
from hpctrain.errors import HpctrainError
from hpctrain.log import log_traceback

INTERRUPTED = 130
"""Ctrl-C: 128 + SIGINT, by which shells know to end a loop."""

# Ranks come to the same line of a script at almost the same time.
_OTHER_RANKS_S = 0.5
_held: Any = None


def install() -> None:
    """Show errors of hpctrain briefly from now on. Not collective."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _hook


def show_as(error: BaseException, text: str) -> None:
    """Set the text that is shown for a user's exception, or for Ctrl-C. Not collective.

    Parameters
    ----------
    error
        The exception, which is re-raised.
    text
        The text; empty to show nothing.
    """
    error._render_traceback_ = text.splitlines  # type: ignore[attr-defined]


def describe(error: BaseException) -> str | None:
    """Return the text for an exception, empty for nothing; None: Python shows it as usual.

    Not collective.
    """
    render = vars(error).get("_render_traceback_")
    if render is not None:
        return "\n".join(render())
    if not isinstance(error, HpctrainError):
        return None
    return "" if error.is_shown_elsewhere else error.describe()


def exit_code(error: BaseException) -> int:
    """Return the exit code of a process that does not catch an exception. Not collective."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    return error.exit_code if isinstance(error, HpctrainError) else HpctrainError.exit_code


def _is_said_here_already(text: str) -> bool:
    """Return whether another rank of this launcher on this node shows the same.

    A mistake in a script that was started as several ranks occurs on each of them, before they are
    connected.
    """
    global _held
    import hashlib
    import socket

    digest = hashlib.sha256(text.encode()).hexdigest()
    # An abstract name, which ends with its process.
    name = f"\0hpctrain-said-{os.getuid()}-{os.getppid()}-{digest[:16]}"
    _held = socket.socket(socket.AF_UNIX)
    try:
        _held.bind(name)
    except OSError:
        return True
    return False


def _hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    text = describe(error)
    if text is None:
        sys.__excepthook__(kind, error, trace)
        return
    is_rank = isinstance(error, HpctrainError) and environ.launched_rank() >= 0
    if text and not (is_rank and _is_said_here_already(text)):
        log_traceback(text)
        if is_rank:
            time.sleep(_OTHER_RANKS_S)
    if not isinstance(error, KeyboardInterrupt):
        # Python exits with the status of a SystemExit from a hook; with -i it does not exit. After
        # Ctrl-C it ends by that signal, the shells' convention.
        raise SystemExit(exit_code(error))
