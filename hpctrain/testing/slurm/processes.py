"""Processes: who they are, how to wait for them, how to run a command that must end."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from hpctrain.testing.slurm.errors import ClusterError

POLL_INTERVAL_S = 0.02

HOST_PROC = Path("/proc")


@dataclass(frozen=True, kw_only=True)
class ProcessIdentity:
    """A process, named so that another one which got the same pid later is not mistaken for it."""

    pid: int
    """As seen in ``proc``."""
    start_ticks: int
    """Clock ticks from boot to the start of the process."""
    proc: Path = HOST_PROC
    """The proc file system of the PID namespace that ``pid`` belongs to."""

    @classmethod
    def of(cls, pid: int, *, proc: Path = HOST_PROC) -> ProcessIdentity | None:
        """Identify a living process. Return None if there is none; a zombie is not alive."""
        try:
            stat = (proc / str(pid) / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return None
        # The second field, the program's name in parentheses, may contain spaces.
        fields = stat.rpartition(")")[2].split()
        state, start_ticks = fields[0], int(fields[19])
        if state in "ZX":
            return None
        return cls(pid=pid, start_ticks=start_ticks, proc=proc)

    @classmethod
    def read(cls, path: Path, *, proc: Path = HOST_PROC) -> ProcessIdentity | None:
        """Return the process that a file written by `write` names, if it is alive."""
        try:
            pid, start_ticks = map(int, path.read_text().split())
        except (FileNotFoundError, ValueError):
            return None
        identity = cls(pid=pid, start_ticks=start_ticks, proc=proc)
        return identity if identity.is_alive() else None

    def write(self, path: Path) -> None:
        """Write down who this is."""
        path.write_text(f"{self.pid} {self.start_ticks}\n")

    def is_alive(self) -> bool:
        """Return whether this very process still runs."""
        return ProcessIdentity.of(self.pid, proc=self.proc) == self

    def kill(self) -> None:
        """Send SIGKILL, if the process still runs. Its pid must be one of the host's."""
        assert self.proc == HOST_PROC
        if self.is_alive():
            os.kill(self.pid, signal.SIGKILL)


def wait_until(
    condition: Callable[[], bool], *, what: str, timeout_s: float, log: Path | None = None
) -> None:
    """Poll a condition until it holds.

    Parameters
    ----------
    condition
        Checked at least once, also with ``timeout_s=0``.
    what
        Named in the error: "slurmctld to listen on 10.213.7.2:6817".
    timeout_s
        How long to wait.
    log
        File whose end the error shows.

    Raises
    ------
    ClusterError
        If the condition does not hold within ``timeout_s``.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise ClusterError(f"Timed out after {timeout_s:g} s waiting for {what}.{tail(log)}")
        time.sleep(POLL_INTERVAL_S)


def run_bounded(
    argv: Sequence[str],
    *,
    timeout_s: float,
    stdin: str = "",
    output: IO[bytes] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command; if it does not end in time, kill its process group.

    Parameters
    ----------
    argv
        The command. Its exit status is not looked at.
    timeout_s
        How long it may run.
    stdin
        What it reads.
    output
        Where stdout and stderr go; they are captured if this is None. A command that leaves a
        daemon behind needs a file here: the end of a pipe never comes.

    Raises
    ------
    ClusterError
        If the command does not end within ``timeout_s``.
    """
    capture = subprocess.PIPE if output is None else None
    with subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=capture or output,
        stderr=capture or output,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            stdout, stderr = process.communicate(stdin, timeout=timeout_s)
        except BaseException as error:
            # nsenter has a child in the node, which does not die with it but is in its group.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                raise ClusterError(
                    f"{' '.join(argv)} did not end within {timeout_s:g} s and was killed."
                ) from error
            raise
    return subprocess.CompletedProcess(list(argv), process.returncode, stdout or "", stderr or "")


def tail(log: Path | None, *, num_lines: int = 15) -> str:
    """Return the end of a log, indented, to be put behind an error message."""
    if log is None:
        return ""
    try:
        lines = log.read_text(errors="replace").splitlines()[-num_lines:]
    except FileNotFoundError:
        return f"\n{log} does not exist."
    if not lines:
        return f"\n{log} is empty."
    return "\n".join([f"\nThe end of {log}:", *(f"  {line}" for line in lines)])
