"""Open MPI as launcher and library, as many sites have it beside an environment's own MPI."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hpctrain.errors import LaunchError, WorkerError
from hpctrain.testing.slurm import VirtualCluster

# Debian's names: another MPI can be installed beside it, and mpiexec be that one.
MPIEXEC = shutil.which("mpiexec.openmpi")
LIBRARY = "libmpi.so.40"
pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(
        MPIEXEC is None, reason="no mpiexec.openmpi on PATH: apt-get install openmpi-bin"
    ),
]

SCRIPT = """
import os, signal, sys
import hpctrain
import hpctrain.collective
from hpctrain import Checkpoint, DataParallelTrainer, RunConfig, ScalingConfig, SlurmConfig

def train(config):
    from mpi4py import MPI

    rank = hpctrain.get_context().get_world_rank()
    total = MPI.COMM_WORLD.allreduce(rank + 1)
    hpctrain.report({"total": total}, Checkpoint.from_dict({"a": 1}) if rank == 0 else None)
    hpctrain.collective.barrier()
    if config["killed"] == rank:
        os.kill(os.getpid(), signal.SIGKILL)
    hpctrain.collective.barrier(timeout_s=600)
    return [total, MPI.Get_library_version(), os.environ.get("SLURM_JOB_NUM_NODES")]

if __name__ == "__main__":
    storage, mpiexec, killed, nodes = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    result = DataParallelTrainer(
        train,
        train_loop_config={"killed": killed},
        scaling_config=ScalingConfig(
            num_workers=2,
            slurm=SlurmConfig(mpi=mpiexec, nodes=nodes, tasks_per_node=2 // nodes),
        ),
        run_config=RunConfig(storage_path=storage, name="run"),
    ).fit()
    print(result.return_value, len(result.nodes))
"""


def train(
    tmp_path: Path,
    *,
    mpiexec: str | None = MPIEXEC,
    library: str = LIBRARY,
    killed: int = -1,
    nodes: int = 1,
    before: tuple[str, ...] = (),
    **environ: str,
) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    assert mpiexec is not None
    argv = [*before, sys.executable, str(script), str(tmp_path), mpiexec, str(killed), str(nodes)]
    # The wheel in this environment would be loaded before the site's library.
    named = {"MPI4PY_LIBMPI": library} if library else {}
    environ = {**os.environ, **named, **environ}
    return subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=120)


def test_two_ranks_train_with_the_mpiexec_that_slurm_config_names(tmp_path: Path) -> None:
    done = train(tmp_path, HPCTRAIN_LAUNCHER="local")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[3, 'Open MPI v" in done.stdout


def test_it_is_known_by_the_name_that_it_has_on_path(tmp_path: Path) -> None:
    assert MPIEXEC is not None
    # Of Open MPI 4 the program says of itself what it is called by.
    (tmp_path / "mpiexec").symlink_to(MPIEXEC)
    done = train(tmp_path, mpiexec=str(tmp_path / "mpiexec"), HPCTRAIN_LAUNCHER="local")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[3, 'Open MPI v" in done.stdout


def test_ranks_that_load_another_mpi_end_the_run_with_what_to_change(tmp_path: Path) -> None:
    # The wheel in this environment is loaded.
    done = train(tmp_path, library="", HPCTRAIN_LAUNCHER="local")
    assert done.returncode == LaunchError.exit_code
    said = " ".join(done.stderr.split())
    assert f"{MPIEXEC} is of the openmpi kind, and the MPI library here of the mpich kind." in said
    assert "SlurmConfig(mpi='/path/to/mpiexec'), or mpi='wheel'" in said
    # No other start was tried.
    assert not (tmp_path / "run/logs/2").exists()


def test_a_killed_rank_is_named_with_how_it_ended(tmp_path: Path) -> None:
    done = train(tmp_path, killed=1, HPCTRAIN_LAUNCHER="local")
    assert done.returncode == WorkerError.exit_code
    assert (
        f"WorkerError: rank 1 of 2 on {os.uname().nodename} failed without an exception: "
        "killed by SIGKILL" in done.stderr
    )
    assert "Last complete checkpoint: " + str(tmp_path / "run/checkpoints/000001") in done.stderr


@pytest.mark.slurm
@pytest.mark.matrix("the site's MPI by path")
def test_two_ranks_train_on_two_nodes_of_an_allocation(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    done = train(
        tmp_path,
        nodes=2,
        before=("salloc", "--quiet", "--nodes=2", "--ntasks-per-node=1"),
        **virtual_slurm.environ,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[3, 'Open MPI v" in done.stdout
    # Open MPI 6 keeps Slurm's variables from the ranks.
    assert re.search(r"('2'|v6.*None)\] 2\n$", done.stdout)
