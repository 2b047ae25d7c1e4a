"""The exit codes of commands, and how commands print errors.

The error classes define them: a script that does not catch an error exits with the same code.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from typer.core import TyperGroup

from hpctrain import uncaught
from hpctrain.cli.output import named_output
from hpctrain.environ import working_directory
from hpctrain.errors import ConfigError, HpctrainError, LaunchError
from hpctrain.printable import show_controls
from hpctrain.uncaught import INTERRUPTED as INTERRUPTED

OK = 0
NEVER_STARTS = LaunchError.exit_code
"""The scheduler, MPI or a node refused to start it."""
FAILED = HpctrainError.exit_code
"""It ran, and failed."""
TIMED_OUT = 124
"""The run has not ended in time; the code of timeout(1)."""


def exit_code(error: BaseException | None) -> int:
    """Return the exit code for an outcome. Not collective."""
    return OK if error is None else uncaught.exit_code(error)


def say(message: str) -> None:
    """Print a line for the person at the terminal, on stderr since stdout may be a pipe."""
    print(f"hpctrain: {show_controls(message, keep_colours=True)}", file=sys.stderr, flush=True)


def _say_unusable(error: OSError) -> None:
    say(f"{error.filename} cannot be used: {error.strerror}.")


class Verbs(TyperGroup):
    """The verbs of ``hpctrain``, with its exit codes."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Parse the command line, and run its verb."""
        for name in ("stdout", "stderr"):
            # Closed by the shell or a daemon, as in >&-. Its descriptor is then no other file's.
            if getattr(sys, name) is None:
                setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - to the end
        try:
            with named_output():
                return super().main(*args, **kwargs)
        except OSError as error:
            # Of --help, or of what was buffered: the others are those of `invoke`.
            if error.filename is None:
                raise
            _say_unusable(error)
            raise SystemExit(FAILED) from None

    def invoke(self, ctx: Any) -> Any:
        """Run a verb; end the process with the exit code of its exception."""
        try:
            return super().invoke(ctx)
        except (HpctrainError, KeyboardInterrupt) as error:
            # A KeyboardInterrupt prints nothing: the code that handled it has printed its meaning.
            if str(error):
                say(str(error))
            raise SystemExit(exit_code(error)) from None
        except OSError as error:
            if isinstance(error, FileNotFoundError):
                # A relative path, in a deleted directory.
                try:
                    working_directory()
                except ConfigError as of_directory:
                    say(str(of_directory))
                    raise SystemExit(exit_code(of_directory)) from None
            if error.filename is None:
                raise
            _say_unusable(error)
            raise SystemExit(FAILED) from None
