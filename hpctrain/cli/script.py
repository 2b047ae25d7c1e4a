"""Run a user's script as ``python SCRIPT ARGS`` does."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from hpctrain import uncaught
from hpctrain.errors import ConfigError

# Python's exit code after an uncaught exception.
_UNCAUGHT = 1


def run_script(script: Path, args: Sequence[str], *, shows_error: bool = True) -> None:
    """Run a script in this process, as ``__main__``. Not collective.

    Parameters
    ----------
    shows_error
        Whether an uncaught exception is shown, and becomes a SystemExit; else it is raised.

    Raises
    ------
    ConfigError
        If there is no such file.
    SystemExit
        After an uncaught exception of the script; it is shown as ``python SCRIPT`` shows it.
    """
    if not script.exists():
        raise ConfigError(f"there is no script {script} (working directory {Path.cwd()}).")
    sys.argv = [str(script), *args]
    # sys.path[0] is the directory of the command that was started, as it is for every command;
    # with `python -P` and PYTHONSAFEPATH there is no such entry.
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = str(script.resolve().parent)
    # Typer has put its own hook there.
    sys.excepthook = sys.__excepthook__
    uncaught.install()
    try:
        runpy.run_path(str(script), run_name="__main__")
    except Exception as error:
        if not shows_error:
            raise
        trace = _frames_of(script, error.__traceback__)
        # The exception prints its own traceback, not the one that is passed.
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        raise SystemExit(_UNCAUGHT) from None


def _frames_of(script: Path, trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename != str(script):
        trace = trace.tb_next
    return trace
