"""Strangers who connect and say nothing, more of them than a process may have files."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hpctrain import Result
from hpctrain.control.hub import Hub
from hpctrain.control.link import connect_tcp
from hpctrain.control.proof import Credentials
from hpctrain.testing.slurm import VirtualCluster
from tests.waiting import wait_until

PATIENCE_S = 60.0
MPIEXEC = str(Path(sys.executable).with_name("mpiexec"))
NUM_STRANGERS = 1100
NUM_FILES = 1024

# Connects so often, keeps what it has, and waits until most of it was shut.
SILENT = """
import resource, select, socket, sys

number, port = int(sys.argv[1]), int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (2 * number, 2 * number))
poller, connections = select.poll(), {}
for _ in range(number):
    connection = socket.create_connection(("127.0.0.1", port))
    connections[connection.fileno()] = connection
    poller.register(connection, select.POLLIN)
while len(connections) > 200:
    for descriptor, _ in poller.poll():
        try:
            if connections[descriptor].recv(4096):
                continue
        except ConnectionResetError:
            pass
        poller.unregister(descriptor)
        connections.pop(descriptor).close()
print("shut out", flush=True)
input()
"""

# Connects as often as it can, for as long as it lives.
BUSY = """
import socket, sys

connections = []
for number in range(10**9):
    try:
        connections.append(socket.create_connection(("127.0.0.1", int(sys.argv[1]))))
    except OSError:
        continue
    if number == 200:
        print("busy", flush=True)
    if len(connections) > 400:
        connections.pop(0).close()
"""

# In the script that is attacked.
WAIT = """
import os, time
from pathlib import Path
from hpctrain.control.hub import Hub

listen_tcp = Hub.listen_tcp

def listen_and_note(hub, *args, **options):
    addresses = listen_tcp(hub, *args, **options)
    Path("port").write_text(addresses[0].rpartition(":")[2])
    return addresses

Hub.listen_tcp = listen_and_note

def is_attacked():
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        yield os.path.exists("attacked")
        time.sleep(0.01)
    raise TimeoutError
"""

SPMD = """
import sys
import hpctrain
from hpctrain import DataParallelTrainer, RunConfig, ScalingConfig

def train():
    rank = hpctrain.get_context().get_world_rank()
    open(f"ready-{rank}", "w").close()
    any(is_attacked())
    for step in range(3):
        hpctrain.report({"step": step})

DataParallelTrainer(
    train,
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(storage_path=".", name="run"),
).fit()
"""

EXECUTOR = """
import socket
from hpctrain import ScalingConfig, SlurmConfig, WorkerGroup
from hpctrain.plan.resources import NodeShape, place_workers

placement = place_workers(ScalingConfig(num_workers=2, slurm=SlurmConfig(nodes=2)), NodeShape())
Path("run").mkdir()
group = WorkerGroup(placement=placement, in_allocation=True, path=Path("run"))
group.start(60)
Path("ready-0").touch()
any(group.execute_single(1, time.time) and attacked for attacked in is_attacked())
print(len(set(group.execute(socket.gethostname))))
group.shutdown()
"""


def start(argv: list[str], program: str, directory: Path, **environ: str) -> subprocess.Popen[str]:
    (directory / "train.py").write_text(WAIT + program)
    return subprocess.Popen(
        [*argv, sys.executable, "train.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=directory,
        env={**os.environ, **environ},
        preexec_fn=partial(resource.setrlimit, resource.RLIMIT_NOFILE, (NUM_FILES, NUM_FILES)),
    )


def attack(process: subprocess.Popen[str], directory: Path, stranger: Any) -> str:
    """Connect to where ranks or agents do, more often than it may have files; return its output."""
    try:
        wait_until((directory / "ready-0").exists, "the address", process=process)
        attacker = stranger(SILENT, NUM_STRANGERS, (directory / "port").read_text())
        assert attacker.read() == "shut out"
        (directory / "attacked").touch()
        output = process.communicate(timeout=PATIENCE_S)[0]
        assert process.returncode == 0, output
        return output
    finally:
        process.kill()
        process.communicate()


@pytest.mark.mpi
def test_ranks_that_existed_already_go_on(tmp_path: Path, stranger: Any):
    attack(start([MPIEXEC, "-n", "2"], SPMD, tmp_path), tmp_path, stranger)
    result = Result.from_path(tmp_path / "run")
    assert result.state == "finished"
    assert [metrics["step"] for metrics in result.metrics_history] == [0, 1, 2]


@pytest.mark.slurm
def test_an_executor_goes_on(virtual_slurm: VirtualCluster, tmp_path: Path, stranger: Any):
    salloc = ["salloc", "--quiet", "-N2", "--ntasks-per-node=1"]
    process = start(salloc, EXECUTOR, tmp_path, **virtual_slurm.environ)
    assert attack(process, tmp_path, stranger).splitlines()[-1] == "2"


def check_that_who_belongs_gets_in(
    hub: Hub, pool: ThreadPoolExecutor, addresses: list[str], credentials: Credentials
) -> None:
    connected = pool.submit(connect_tcp, addresses, credentials, timeout_s=PATIENCE_S)
    while not connected.done():
        hub.poll(0.01)
    sock, _ = connected.result()
    sock.close()


def test_who_belongs_to_the_run_gets_in_between_strangers_who_do_not_stop(
    tmp_path: Path, stranger: Any
):
    hub = Hub(attempt=1)
    credentials = Credentials(b"s", run=str(tmp_path), attempt=1)
    addresses = hub.listen_tcp(credentials, only_here=True)
    attacker = stranger(BUSY, addresses[0].rpartition(":")[2])
    with ThreadPoolExecutor() as pool:
        deadline = time.monotonic() + PATIENCE_S
        while not attacker.has_written:
            hub.poll(0.01)
            assert time.monotonic() < deadline
        check_that_who_belongs_gets_in(hub, pool, addresses, credentials)
    hub.close()


def test_a_process_without_files_leaves_who_connects_for_later(tmp_path: Path):
    hub = Hub(attempt=1)
    credentials = Credentials(b"s", run=str(tmp_path), attempt=1)
    addresses = hub.listen_tcp(credentials, only_here=True)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ThreadPoolExecutor() as pool:
        # The connection has its descriptor; to accept it would take another one.
        host, _, port = addresses[0].rpartition(":")
        with socket.create_connection((host, int(port))) as waiting:
            resource.setrlimit(resource.RLIMIT_NOFILE, (waiting.fileno() + 1, hard))
            try:
                assert hub.poll(1.0) == []
                assert hub.poll(1.0) == []
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            hub.poll(1.0)
            assert len(waiting.recv(100)) == 32
        check_that_who_belongs_gets_in(hub, pool, addresses, credentials)
    hub.close()
