"""Attackers: another user of the same machine, with Python's standard library."""

from __future__ import annotations

import os
import queue
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

PATIENCE_S = 60.0


class Stranger:
    """A process of another user, to which a test writes and which answers line by line.

    Parameters
    ----------
    program
        What it runs.
    arguments
        Its arguments.
    """

    def __init__(self, program: str, *arguments: object) -> None:
        # The system's: that of the tests may lie where nobody else comes.
        python = shutil.which("python3", path="/usr/bin:/usr/local/bin")
        if python is None:
            pytest.skip("needs a Python in /usr/bin, for another user")
        # Where the tests do not run as root, there is nobody else to be.
        other: dict[str, Any] = {"user": 65534, "group": 65534, "extra_groups": []}
        self.process = subprocess.Popen(
            [python, "-I", "-S", "-c", program, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
            **(other if os.getuid() == 0 else {}),
        )

        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def write(self, line: object) -> None:
        """Let it read a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def read(self) -> str:
        """Return its next line; "" if it has ended."""
        return self._lines.get(timeout=PATIENCE_S)

    @property
    def has_written(self) -> bool:
        """Whether there is a line to read."""
        return not self._lines.empty()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.strip())
        self._lines.put("")


@pytest.fixture
def stranger() -> Iterator[Callable[..., Stranger]]:
    """Start attackers, which are gone after the test."""
    with ExitStack() as stack:

        def start(program: str, *arguments: object) -> Stranger:
            attacker = Stranger(program, *arguments)
            stack.enter_context(attacker.process)
            stack.callback(attacker.process.kill)
            return attacker

        yield start
