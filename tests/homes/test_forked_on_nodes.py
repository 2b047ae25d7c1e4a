"""Ranks that are forked on the nodes of a job: from whose Python, and with which PMI."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpctrain.execute.rank_forks import system_python
from hpctrain.rundir.ledger import read_events
from hpctrain.rundir.paths import RunPaths
from hpctrain.testing.pytest_plugin import is_all_required
from hpctrain.testing.slurm import VirtualCluster, best_mode
from tests.waiting import wait_until, wait_until_final

# Starts of ranks on two nodes, on a machine that is busy.
pytestmark = [pytest.mark.slurm, pytest.mark.mpi, pytest.mark.timeout(240)]
TIMEOUT_S = 180
TWO_NODES = ("--nodes=2", "--ntasks-per-node=2")

SCRIPT = """
import json, os, sys
import hpctrain
from hpctrain import (
    BackendConfig, DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig, SlurmConfig,
)

class Config(BackendConfig):
    preload = ("hpctrain.worker.main", "hpctrain.worker.train", "cloudpickle", "mpi4py")

def train():
    from mpi4py import MPI

    def words(pid):
        with open(f"/proc/{pid}/cmdline") as file:
            return file.read().split(chr(0))

    server = os.getppid()
    with open(f"/proc/{server}/stat") as file:
        first_client = file.read().rpartition(")")[2].split()[1]
    world, left = MPI.COMM_WORLD, ("PMI", "OMPI_", "HPCTRAIN_FORK")
    rank = {
        "launched_as": int(os.environ["SLURM_PROCID"]),
        "rank": world.rank,
        "node": [hpctrain.get_context().get_node_rank(), os.uname().nodename],
        "sum": world.allreduce(world.rank),
        "library": MPI.Get_library_version(),
        "left": [name for name in os.environ if name.startswith(left)],
        "is_forked": "hpctrain.worker.fork_server" in words(server),
        "client": words(first_client)[0],
    }
    return hpctrain.get_context().world.attempt, world.allgather(rank)

if __name__ == "__main__":
    storage, mpi = sys.argv[1:]
    attempt, ranks = DataParallelTrainer(
        train,
        backend_config=Config(),
        scaling_config=ScalingConfig(num_workers=4, slurm=SlurmConfig(mpi=mpi)),
        run_config=RunConfig(
            storage_path=storage, name="run", failure_config=FailureConfig(max_failures=1)
        ),
    ).fit().return_value
    with open(f"{storage}/answer.new", "w") as file:
        json.dump([attempt, ranks], file)
    os.rename(f"{storage}/answer.new", f"{storage}/answer.json")
"""


@pytest.fixture
def argv(tmp_path: Path) -> list[str]:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    return [sys.executable, str(script), str(tmp_path)]


def answer(folder: Path) -> tuple[int, list[dict[str, Any]]]:
    """Return the number of the attempt, and what each of four forked ranks has found."""
    events = read_events(RunPaths(folder / "run"))
    assert [event["reason"] for event in events if event["event"] == "not-forked"] == []
    attempt, ranks = json.loads((folder / "answer.json").read_text())
    assert [rank["rank"] for rank in ranks] == [0, 1, 2, 3]
    assert [rank["node"][0] for rank in ranks] == [0, 0, 1, 1]
    assert {rank["sum"] for rank in ranks} == {6}
    assert [rank["left"] for rank in ranks] == [[]] * 4
    assert [rank["is_forked"] for rank in ranks] == [True] * 4
    return attempt, ranks


def batch(folder: Path, argv: list[str], cluster: VirtualCluster) -> tuple[int, list[Any]]:
    """Run a script on a node of a job; return its `answer`."""
    subprocess.run(
        ["sbatch", *TWO_NODES, f"--output={folder}/job.out", f"--wrap={' '.join(argv)}"],
        env={**os.environ, **cluster.environ},
        check=True,
        timeout=60,
    )
    printed = folder / "job.out"
    wait_until_final(folder / "run", timeout_s=TIMEOUT_S)
    wait_until((folder / "answer.json").exists, lambda: printed.read_text(), timeout_s=20)
    return answer(folder)


@pytest.mark.skipif(not system_python(), reason="no Python of the operating system from 3.9 on")
def test_in_a_job_the_python_of_the_nodes_asks_for_the_forks(
    virtual_slurm: VirtualCluster, argv: list[str], tmp_path: Path
) -> None:
    attempt, ranks = batch(tmp_path, [*argv, "auto"], virtual_slurm)
    assert attempt == 1
    assert {rank["client"] for rank in ranks} == {system_python()}


@pytest.mark.skipif(
    not system_python() or best_mode() != "namespaces",
    reason="no Python of the operating system from 3.9 on, or nodes that share their files",
)
def test_ranks_start_on_a_node_that_lacks_the_python_of_the_others(
    virtual_slurm: VirtualCluster, argv: list[str], tmp_path: Path
) -> None:
    python = os.path.realpath(system_python())
    mounts = {
        node: virtual_slurm.run_on(node, ["mount", "--bind", os.devnull, python])
        for node in virtual_slurm.node_names[1:]
    }
    try:
        assert [done.stderr for done in mounts.values() if done.returncode] == []
        attempt, ranks = batch(tmp_path, [*argv, "auto"], virtual_slurm)
    finally:
        for node in mounts:
            virtual_slurm.run_on(node, ["umount", python])
    assert attempt == 2
    assert system_python() not in {rank["client"] for rank in ranks}


@pytest.mark.skipif(
    shutil.which("mpiexec.openmpi") is None,
    reason="no Open MPI of the operating system: apt-get install openmpi-bin",
)
def test_ranks_that_are_forked_under_pmix_are_those_that_slurm_has_started(
    virtual_slurm: VirtualCluster, argv: list[str], tmp_path: Path
) -> None:
    tried = virtual_slurm.run_on("head", ["srun", "--mpi=pmix", "--ntasks=1", "true"])
    if tried.returncode != 0 and not is_all_required():
        pytest.skip(f"apt-get install libpmix-dev: {tried.stderr}")
    done = subprocess.run(
        ["salloc", "--quiet", *TWO_NODES, *argv, "pmix"],
        # The wheel in this environment would be loaded before the site's library.
        env={**os.environ, **virtual_slurm.environ, "MPI4PY_LIBMPI": "libmpi.so.40"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    attempt, ranks = answer(tmp_path)
    assert attempt == 1
    assert [rank["launched_as"] for rank in ranks] == [0, 1, 2, 3]
    assert all(rank["library"].startswith("Open MPI v") for rank in ranks)
