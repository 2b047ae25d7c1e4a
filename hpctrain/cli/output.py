"""Stdout whose errors name it, such as those of a full disk in ``hpctrain list > FILE``."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast


@contextmanager
def named_output() -> Iterator[None]:
    """Give the errors of stdout a file name, and write all of it before the end.

    Not collective.

    Raises
    ------
    OSError
        If it cannot be written. It is raised once: what follows is lost.
    """
    stdout = sys.stdout
    if stdout is None:
        # The process has none: hpctrain >&-
        yield
        return
    sys.stdout = cast(TextIO, _NamedOutput(stdout))
    try:
        yield
    finally:
        try:
            sys.stdout.flush()
        finally:
            sys.stdout = stdout


class _NamedOutput:
    """A stream whose errors have a file name, as those of files have."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text."""
        if not text:
            # click looks by it what the stream takes.
            return self._stream.write(text)
        with self._errors_named():
            return self._stream.write(text)

    def flush(self) -> None:
        """Write what is buffered."""
        with self._errors_named():
            self._stream.flush()

    @contextmanager
    def _errors_named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            # A reader that closed the pipe (`head`) is done: exit silently.
            if error.errno != errno.EPIPE:
                error.filename = "standard output"
            # Python tries again at the end of the process, and would print an error of its own.
            # One of a test has no descriptor.
            with suppress(OSError):
                descriptor = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
                os.dup2(descriptor, self._stream.fileno())
                os.close(descriptor)
            raise
