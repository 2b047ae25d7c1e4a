"""A process group that runs a step: srun or mpiexec, and what they start."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from hpctrain import environ, linux, timeouts
from hpctrain.errors import LaunchError
from hpctrain.own_files import open_log
from hpctrain.own_time import Deadline
from hpctrain.rundir.files import may_pass

_LOOK_INTERVAL_S = 0.02
_LOOK_ONLY = os.WEXITED | os.WNOHANG | os.WNOWAIT


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
    job_id
        The job of Slurm in which it starts steps, by itself or through others; they end with it.
    stdin
        Its standard input.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        environment: Mapping[str, str],
        log: Path,
        job_id: str | None = None,
        stdin: bytes = b"",
    ) -> None:
        self.argv = list(argv)
        self._stdin = stdin
        self.log = log
        self._job_id = job_id
        self._mark = os.urandom(8).hex()
        self._environment = {**environment}
        if job_id is not None:
            self._environment[environ.STEP_MARK] = self._mark
        self.pidfd: int | None = None
        """Becomes readable when the process ends; None on kernels before 5.3."""
        self._start()

    def start_again(self) -> None:
        """Start the command once more, after it has ended."""
        self._process.wait()
        self.close()
        self._start()

    def _start(self) -> None:
        try:
            with open(open_log(self.log), "ab") as output, _open_input(self._stdin) as given:
                self._output_begins = output.tell()
                # A session of its own: Ctrl-C in a terminal is for the executor to act on.
                self._process = subprocess.Popen(
                    self.argv,
                    env=self._environment,
                    stdin=given,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            # Of the log: full for a moment, or away.
            named = f" ({error.filename})" if error.filename else ""
            raise LaunchError(
                f"cannot start {self.argv[0]}: {error.strerror}{named}.", transient=may_pass(error)
            ) from error
        self.pidfd = _open_pidfd(self._process.pid)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def returncode(self) -> int | None:
        """Return the exit status, or None while it runs."""
        if self._process.returncode is None:
            # It is not reaped before `kill`: until then no other process gets its id.
            with contextlib.suppress(ChildProcessError):
                ended = os.waitid(os.P_PID, self.pid, _LOOK_ONLY)
                if ended is None:
                    return None
                has_exited = ended.si_code == os.CLD_EXITED
                return ended.si_status if has_exited else -ended.si_status
        # `kill` in another thread has reaped it.
        return self._process.wait()

    def wait(self, timeout_s: float) -> int | None:
        """Wait for its end; return the exit status, or None if it still runs."""
        self._await_end(timeout_s)
        return self.returncode()

    def _await_end(self, timeout_s: float) -> None:
        if self.pidfd is not None:
            # subprocess's own wait looks ever more seldom, and would add up to 50 ms to every end.
            poller = select.poll()
            poller.register(self.pidfd, select.POLLIN)
            poller.poll(timeout_s * 1000)
            return
        deadline = Deadline(timeout_s)
        while not deadline.is_over and self.returncode() is None:
            time.sleep(_LOOK_INTERVAL_S)

    def kill(self, patience_s: float = timeouts.LAUNCHER_END_S) -> None:
        """End it and all that it has started: first politely, then not.

        That is what it has started here, and the steps of its job.
        """
        if self._process.returncode is not None:
            # It was killed before.
            return
        has_ended = self.returncode() is not None
        # Of a job, the rest of the patience is for its steps.
        polite_s = min(patience_s / 2, timeouts.SRUN_END_S) if self._job_id else patience_s
        # hydra's ssh to a node that is gone stays, in a process group of its own.
        below = [] if has_ended else _open_pidfds(descendants(self.pid))
        if not has_ended:
            # srun and mpiexec pass a SIGTERM's meaning on to the other nodes; SIGKILL they cannot.
            os.kill(self.pid, signal.SIGTERM)
            self._await_end(polite_s)
        if self._job_id is not None:
            from hpctrain.slurm.steps import end_marked_steps

            end_marked_steps(self._job_id, self._mark, timeout_s=patience_s / 2)
        if not has_ended:
            # An mpiexec whose step is gone removes its files, and ends.
            self._await_end(polite_s if self._job_id else 0.0)
        os.killpg(self.pid, signal.SIGKILL)
        for descriptor in below:
            with contextlib.suppress(ProcessLookupError):
                linux.pidfd_send_signal(descriptor, signal.SIGKILL)
            os.close(descriptor)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(patience_s)
        self.close()

    def close(self) -> None:
        """Free the descriptor."""
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None

    def last_lines(self, count: int = 12) -> str:
        """Return the end of its output since it was started."""
        try:
            written = self.log.read_bytes()[self._output_begins :]
        except OSError:
            return ""
        return "\n".join(written.decode(errors="replace").splitlines()[-count:])


def _open_input(content: bytes) -> BinaryIO:
    """Return a file that no other process sees."""
    if not content:
        return open(os.devnull, "rb")
    file = os.fdopen(linux.memory_file("hpctrain-stdin"), "w+b")
    file.write(content)
    file.seek(0)
    return file


def _open_pidfd(pid: int) -> int | None:
    try:
        return linux.pidfd_open(pid)
    except OSError:
        return None


def _open_pidfds(pids: Iterable[int]) -> list[int]:
    return [pidfd for pid in pids if (pidfd := _open_pidfd(pid)) is not None]


def descendants(pid: int) -> list[int]:
    """Return the processes of this host that a process has started, and these in turn.

    Not collective. Not those whose parent has ended.
    """
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (fields := _stat_fields(int(name))):
            children.setdefault(int(fields[1]), []).append(int(name))
    found = children.get(pid, [])
    for child in found:
        # Those that are appended are looked at too.
        found += children.get(child, [])
    return found


def process_start_time(pid: int) -> int | None:
    """Return when a process of this host started, in clock ticks since boot; None if it is gone.

    Not collective. A pid is used again; with its start time it is unique (man 5 proc, field 22).
    """
    fields = _stat_fields(pid)
    return None if not fields or fields[0] in "ZX" else int(fields[19])


def _stat_fields(pid: int) -> list[str]:
    """Return the fields of a process from its state on, the third; none if it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return []
    return stat.rpartition(")")[2].split()
