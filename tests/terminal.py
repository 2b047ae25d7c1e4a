"""A program in a terminal, in which a key is pressed."""

from __future__ import annotations

import os
import pty
import select
import time
from collections.abc import Callable, Mapping
from pathlib import Path


def press(
    key: bytes,
    argv: list[str],
    *,
    once: Callable[[], bool] = lambda: True,
    shown_before: bytes = b"",
    cwd: Path,
    environ: Mapping[str, str],
    timeout_s: float,
) -> tuple[str, int]:
    """Run a program, press a key once it is time, and return what was shown, and the status.

    It is time once `once` returns true, and the program has shown `shown_before`.
    The status is negative where a signal ended it.
    """
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(cwd)
        os.execvpe(argv[0], argv, dict(environ))
    shown, is_pressed = b"", False
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if not is_pressed and shown_before in shown and once():
            os.write(terminal, key)
            is_pressed = True
        if select.select([terminal], [], [], 0.05)[0]:
            try:
                shown += os.read(terminal, 65536)
            except OSError:  # EIO: the last process of the terminal has ended
                break
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    return shown.decode().replace("\r\n", "\n"), os.waitstatus_to_exitcode(status)
