"""A process group that runs a step: srun or mpiexec, and what they start."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpctrain.errors import LaunchError
from hpctrain.own_time import Deadline

_TERMINATE_PATIENCE_S = 5.0
_LOOK_INTERVAL_S = 0.02


class StepProcess:
    """A started command, in a process group of its own.

    Parameters
    ----------
    argv
        The command.
    environment
        Its whole environment.
    log
        File that gets its output.
    """

    def __init__(self, argv: Sequence[str], *, environment: Mapping[str, str], log: Path) -> None:
        self.argv = list(argv)
        self.log = log
        try:
            with open(log, "ab") as output:
                # A session of its own: Ctrl-C in a terminal is for the executor to act on.
                self._process = subprocess.Popen(
                    argv,
                    env=dict(environment),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            raise LaunchError(f"cannot start {argv[0]}: {error.strerror}.") from error
        self.pidfd = _open_pidfd(self._process.pid)
        """Becomes readable when the process ends; None on kernels before 5.3."""

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def returncode(self) -> int | None:
        """Return the exit status, or None while it runs."""
        return self._process.poll()

    def wait(self, timeout_s: float) -> int | None:
        """Wait for its end; return the exit status, or None if it still runs."""
        self._await_end(timeout_s)
        return self._process.poll()

    def _await_end(self, timeout_s: float) -> None:
        """Wait for its end, and leave its process id as it is."""
        if self.pidfd is not None:
            # subprocess's own wait looks ever more seldom, and would add up to 50 ms to every end.
            poller = select.poll()
            poller.register(self.pidfd, select.POLLIN)
            poller.poll(timeout_s * 1000)
            return
        deadline, options = Deadline(timeout_s), os.WEXITED | os.WNOWAIT | os.WNOHANG
        while not deadline.is_over and not os.waitid(os.P_PID, self._process.pid, options):
            time.sleep(_LOOK_INTERVAL_S)

    def kill(self, patience_s: float = _TERMINATE_PATIENCE_S) -> None:
        """End it and everything in its process group: first politely, then not."""
        if self._process.poll() is None:
            # srun and mpiexec pass a SIGTERM's meaning on to the other nodes; SIGKILL they cannot.
            self._process.terminate()
            self._await_end(patience_s)
            # Not reaped yet, so its number is still the group's: ssh to a node that is gone stays.
            os.killpg(self._process.pid, signal.SIGKILL)
            self.wait(patience_s)
        self.close()

    def close(self) -> None:
        """Free the descriptor."""
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None

    def last_lines(self, count: int = 12) -> str:
        """Return the end of its output."""
        try:
            lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join(lines[-count:])


def _open_pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def process_start_time(pid: int) -> int | None:
    """Return when a process of this host started, in clock ticks since boot; None if it is gone.

    Not collective. A pid is used again; with its start time it is unique (man 5 proc, field 22).
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])
