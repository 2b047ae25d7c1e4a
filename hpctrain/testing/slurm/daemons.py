"""A daemon of the cluster, started and killed by the identity of its process."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hpctrain.testing.slurm.errors import ClusterError
from hpctrain.testing.slurm.layout import Layout
from hpctrain.testing.slurm.places import Place
from hpctrain.testing.slurm.processes import ProcessIdentity, run_bounded, tail, wait_until


@dataclass(frozen=True, kw_only=True)
class Daemon:
    """A program that puts itself into the background and writes a pid file."""

    name: str
    """Name of its pid file and of its log."""
    argv: tuple[str, ...]
    place: Place
    layout: Layout
    environ: Mapping[str, str] = field(default_factory=dict)
    is_ready: Callable[[], bool] | None = None
    """Condition after the start, besides the existence of the pid file."""

    @property
    def log(self) -> Path:
        """Where it says what goes wrong."""
        return self.layout.log_file(self.name)

    def process(self) -> ProcessIdentity | None:
        """Return its process, if it runs. The pid is the one seen from its own place."""
        return ProcessIdentity.read(self.layout.daemon_identity(self.name), proc=self.place.proc)

    def start(self, *, timeout_s: float = 30) -> None:
        """Start it and wait until it is ready.

        Parameters
        ----------
        timeout_s
            How long to wait.

        Raises
        ------
        ClusterError
            If it runs already, fails, or is not ready in time; shows the end of its log.
        """
        if self.process() is not None:
            raise ClusterError(f"{self.name} already runs.")
        pid_file = self.layout.pid_file(self.name)
        pid_file.unlink(missing_ok=True)
        argv = self.place.command(self.argv, environ=self.environ, inherit=False)
        with self.log.open("ab") as output:
            returncode = run_bounded(argv, timeout_s=timeout_s, output=output).returncode
        if returncode != 0:
            raise ClusterError(
                f"{self.name} failed to start with exit status {returncode}.{tail(self.log)}"
            )

        def has_written_its_pid() -> bool:
            try:
                pid = int(pid_file.read_text())
            except (FileNotFoundError, ValueError):
                return False
            process = ProcessIdentity.of(pid, proc=self.place.proc)
            if process is not None:
                process.write(self.layout.daemon_identity(self.name))
            return process is not None

        wait_until(
            has_written_its_pid,
            what=f"{self.name} to write the pid of a living process to {pid_file}",
            timeout_s=timeout_s,
            log=self.log,
        )
        if self.is_ready is not None:
            wait_until(
                self.is_ready, what=f"{self.name} to answer", timeout_s=timeout_s, log=self.log
            )

    def kill(self) -> None:
        """End it with SIGKILL, and nothing else: what it has started lives on."""
        process = self.process()
        if process is None:
            return
        run_bounded(self.place.command(["kill", "-KILL", str(process.pid)]), timeout_s=10)
        wait_until(lambda: not process.is_alive(), what=f"{self.name} to die", timeout_s=10)


def is_listening(address: str, port: int) -> bool:
    """Return whether something accepts TCP connections there."""
    try:
        with socket.create_connection((address, port), timeout=1):
            return True
    except OSError:
        return False
