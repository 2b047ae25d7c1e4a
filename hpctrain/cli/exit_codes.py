"""What the exit status says, and how errors are printed: the one place for both."""

from __future__ import annotations

import sys
from typing import Any

from typer.core import TyperGroup

from hpctrain.environ import working_directory
from hpctrain.errors import (
    ConfigError,
    HpctrainError,
    LaunchError,
    RunStoppedError,
    WorkerContextError,
)

OK = 0
USAGE = 2
"""A value or an option is impossible; nothing was started. Also what the parser of options says."""
NEVER_STARTS = 3
"""The scheduler, MPI or a node refused to start it."""
FAILED = 4
"""It ran, and failed."""
RESUMABLE = 5
"""It was stopped; the same command resumes it."""
TIMED_OUT = 124
"""What was waited for is not over yet; as timeout(1) says it."""
INTERRUPTED = 130
"""Ctrl-C: 128 + SIGINT, by which shells know to end a loop."""


def exit_code(error: BaseException | None) -> int:
    """Return the exit status that an outcome has. Not collective."""
    if error is None:
        return OK
    if isinstance(error, (ConfigError, WorkerContextError)):
        return USAGE
    if isinstance(error, LaunchError):
        return NEVER_STARTS
    if isinstance(error, RunStoppedError):
        return RESUMABLE
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    return FAILED


def say(message: str) -> None:
    """Print a line for the person at the terminal, who may have stdout in a pipe."""
    print(f"hpctrain: {message}", file=sys.stderr, flush=True)


class Verbs(TyperGroup):
    """The verbs of ``hpctrain``, with its exit codes."""

    def invoke(self, ctx: Any) -> Any:
        """Run a verb; end the process with the exit code of what it raises."""
        try:
            return super().invoke(ctx)
        except (HpctrainError, KeyboardInterrupt) as error:
            # A KeyboardInterrupt says nothing: whoever knew what it means has said so.
            if str(error):
                say(str(error))
            raise SystemExit(exit_code(error)) from None
        except FileNotFoundError:
            # Of a relative path, in a directory that is no longer there.
            try:
                working_directory()
            except ConfigError as error:
                say(str(error))
                raise SystemExit(exit_code(error)) from None
            raise
