"""What a forked rank asks of the filesystem that the environment is on: nothing."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import hpctrain
from hpctrain import environ
from hpctrain.execute.fork_server import ForkServers
from hpctrain.execute.rank_forks import client_variables, system_python
from hpctrain.testing.pytest_plugin import is_all_required
from hpctrain.worker.own_mpich import is_own_mpich
from tests.processes import run_python
from tests.waiting import wait_until
from tests.worker.programs import Program

# Where the interpreter is the system's, its files are on each node.
PLACES = tuple(
    os.path.join(os.path.realpath(place), "")
    for place in (sys.prefix, sys.base_prefix, Path(hpctrain.__file__).parent)
    if place != "/usr"
)
STRACE = ("strace", "-f", "-qq", "-e", "trace=%file", "-e", "signal=none")
_CALL = re.compile(r'^\d+ +\w+\((?:\w+, )?"([^"]+)"')
pytestmark = [
    pytest.mark.skipif(
        shutil.which("strace") is None and not is_all_required(),
        reason="no strace on PATH: apt-get install strace",
    ),
    pytest.mark.skipif(not system_python(), reason="no Python of the operating system from 3.9 on"),
]


def asked(log: Path) -> list[str]:
    """Return the paths below the environment, and hpctrain, that a log of strace has."""
    calls = (_CALL.match(line) for line in log.read_text(errors="replace").splitlines())
    paths = [call[1] for call in calls if call]
    assert paths
    return [path for path in paths if path.startswith(PLACES)]


@contextmanager
def traced(pid: int, log: Path) -> Iterator[None]:
    """Write down the calls of a process and of those that it forks."""
    tracer = subprocess.Popen([*STRACE, "-o", str(log), "-p", str(pid)])
    status, mark = Path(f"/proc/{pid}/status"), f"TracerPid:\t{tracer.pid}\n"
    try:
        wait_until(lambda: mark in status.read_text(), process=tracer, timeout_s=30)
        yield
    finally:
        # It lets them go on.
        tracer.send_signal(signal.SIGTERM)
        tracer.wait(30)


@pytest.fixture
def variables() -> dict[str, str]:
    return {**environ.without_launcher_variables(os.environ), "OMP_NUM_THREADS": "1"}


@pytest.fixture
def servers(variables: dict[str, str]) -> Iterator[ForkServers]:
    modules = ("hpctrain.worker.main", "encodings.idna", "mpi4py")
    made = ForkServers(modules, own_places=(), environment=variables)
    yield made
    made.close()


def run_traced(
    servers: ForkServers, command: list[str], variables: dict[str, str], folder: Path
) -> tuple[str, list[str], list[str]]:
    """Return what a forked rank prints, and what its client and it itself have asked for."""
    argv = servers.command(command, variables)

    def run(*before: str) -> str:
        done = subprocess.run(
            [*before, *argv],
            env={**variables, **client_variables(argv)},
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.stdout + done.stderr

    # It waits for what the server imports.
    run()
    assert servers.pid is not None
    of_client, of_rank = folder / "client.log", folder / "rank.log"
    with traced(servers.pid, of_rank):
        printed = run(*STRACE, "-o", str(of_client))
    assert servers.take_reasons() == []
    return printed, asked(of_client), asked(of_rank)


@pytest.mark.mpi
@pytest.mark.skipif(not is_own_mpich(), reason="the files of other MPI libraries are the ranks'")
def test_a_rank_starts_mpi_without_a_file_of_the_environment(
    servers: ForkServers, variables: dict[str, str], tmp_path: Path
) -> None:
    source = """
        import os
        from hpctrain.worker import mpi, own_mpich
        comm = mpi.initialize()
        # As for Slurm's PMI.
        own_mpich.is_own_mpich()
        print(comm.size, "HPCTRAIN_FORK_CLIENT" in os.environ)
        mpi.finalize()
        os._exit(0)
    """
    program = Program(tmp_path, variables, source)
    printed, by_client, by_rank = run_traced(servers, program.plain, variables, tmp_path)
    # UCX prints which network interfaces have gone meanwhile, such as those of a virtual cluster.
    assert printed.splitlines()[-1] == "1 False"
    assert by_client == []
    assert by_rank == []


def test_the_program_of_ranks_is_read_once(
    servers: ForkServers, variables: dict[str, str], tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "hpctrain.worker.main", str(tmp_path), "1", "2", "no-such"]
    printed, by_client, by_rank = run_traced(servers, command, variables, tmp_path)
    assert printed.startswith("hpctrain: ")
    assert by_client == []
    assert by_rank == []


@pytest.mark.mpi
@pytest.mark.skipif(not is_own_mpich(), reason="other MPI libraries are loaded in each rank")
def test_a_rank_handles_signals_as_one_that_has_loaded_mpi_itself(
    servers: ForkServers, variables: dict[str, str], tmp_path: Path
) -> None:
    source = """
        import os
        from hpctrain.worker import mpi

        def caught():
            (line,) = [line for line in open("/proc/self/status") if line.startswith("SigCgt")]
            return line.split()[1]

        before = caught()
        mpi.initialize()
        print(os.getpid(), before, caught(), flush=True)
        os._exit(0)
    """
    program = Program(tmp_path, variables, source)
    plain = program.run(program.plain)
    forked = program.run(servers.command(program.plain, variables))
    (_, *expected), (pid, *found) = plain.stdout.split(), forked.stdout.split()
    assert int(pid) != forked.args[0]
    assert found == expected
    assert expected[0] != expected[1]


LATE = """
    import json, sys
    import hpctrain
    from hpctrain import BackendConfig, Checkpoint, DataParallelTrainer, RunConfig, ScalingConfig
    from hpctrain.backend import OF_EVERY_RANK

    class Config(BackendConfig):
        preload = OF_EVERY_RANK

    def train():
        import os

        rank = hpctrain.get_context().get_world_rank()
        hpctrain.report({"step": 1}, Checkpoint.from_dict({"step": 1}) if rank == 0 else None)
        with open(f"/proc/{os.getppid()}/cmdline") as file:
            is_forked = "hpctrain.worker.fork_server" in file.read()
        return is_forked, [*sys.modules]

    is_forked, had = DataParallelTrainer(
        train,
        backend_config=Config(),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=sys.argv[1], verbose=0, launcher="local"),
    ).fit().return_value
    print(json.dumps([is_forked, had]))
"""
IMPORTS = """
    import importlib, json, sys
    from hpctrain.backend import OF_EVERY_RANK

    for name in ("hpctrain.worker.fork_server", *OF_EVERY_RANK):
        importlib.import_module(name)
    print(json.dumps([*sys.modules]))
"""


@pytest.mark.mpi
def test_ranks_import_nothing_of_hpctrain_once_they_are_forked(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(LATE))
    done = run_python(tmp_path / "train.py", tmp_path / "runs")
    is_forked, had = json.loads(done.stdout.splitlines()[-1])
    assert is_forked
    server = json.loads(run_python("-c", textwrap.dedent(IMPORTS)).stdout)
    assert [name for name in had if name.startswith("hpctrain.") and name not in server] == []
