"""A job without the environment of its submitter (``--export=NONE``): ranks get the executor's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpctrain import Result
from hpctrain.testing.slurm import VirtualCluster

pytestmark = pytest.mark.slurm

SCRIPT = """
import os, sys
import hpctrain
from hpctrain import DataParallelTrainer, RunConfig, ScalingConfig, SlurmConfig

NAMES = ("PATH", "OMP_NUM_THREADS", "FROM_SUBMITTER", "FROM_SETUP", "FROM_SITE", "SLURM_EXPORT_ENV")

def train(config):
    from mpi4py import MPI

    seen = MPI.COMM_WORLD.allgather({name: os.environ.get(name) for name in NAMES})
    assert all(one == seen[0] for one in seen), seen
    hpctrain.report(seen[0])

if __name__ == "__main__":
    storage, site, mpi, *sbatch_args = sys.argv[1:]
    DataParallelTrainer(
        train,
        scaling_config=ScalingConfig(
            num_workers=2,
            resources_per_worker={"CPU": 2},
            slurm=SlurmConfig(
                nodes=2, site=site or None, mpi=mpi, setup=["export FROM_SETUP=1"],
                sbatch_args=sbatch_args,
            ),
        ),
        run_config=RunConfig(storage_path=storage, name="run"),
    ).fit()
"""
SITE = """
[directives]
export = "NONE"
[environment]
FROM_SITE = "1"
"""
BATCH = """#!/bin/bash
#SBATCH --export=NONE --nodes=2 --ntasks-per-node=1 --cpus-per-task=2 --output={folder}/out
export FROM_SETUP=1
{python} {folder}/train.py {folder} "" auto || exit
srun --export=ALL --mpi=pmi2 {python} {folder}/train.py {folder}/spmd "" auto
"""


def ranks_see(run: Path) -> dict[str, str]:
    """Return what the ranks of a run found in their environment."""
    return {k: v for k, v in Result.from_path(run).metrics.items() if v is not None}


@pytest.mark.parametrize(
    ("said", "mpi"), [("sbatch_args", "auto"), ("site", "wheel"), ("SBATCH_EXPORT", "auto")]
)
def test_ranks_of_a_job_get_what_its_script_has_set_up(
    virtual_slurm: VirtualCluster, tmp_path: Path, said: str, mpi: str
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "site.toml").write_text(SITE)
    site = str(tmp_path / "site.toml") if said == "site" else ""
    options = ["--export=NONE"] if said == "sbatch_args" else []
    environment = {**os.environ, **virtual_slurm.environ, "FROM_SUBMITTER": "1"}
    if said == "SBATCH_EXPORT":
        environment["SBATCH_EXPORT"] = "NONE"
    done = subprocess.run(
        [sys.executable, str(tmp_path / "train.py"), str(tmp_path), site, mpi, *options],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    seen = ranks_see(tmp_path / "run")
    assert "/bin" in seen.pop("PATH")
    expected = {"OMP_NUM_THREADS": "2", "FROM_SETUP": "1"}
    assert seen == ({**expected, "FROM_SITE": "1"} if site else expected)


def test_ranks_in_a_script_without_the_environment_of_its_submitter_get_that_of_the_script(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    script = tmp_path / "job.sh"
    script.write_text(BATCH.format(folder=tmp_path, python=sys.executable))
    done = subprocess.run(
        ["sbatch", "--wait", str(script)],
        env={**os.environ, **virtual_slurm.environ, "FROM_SUBMITTER": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr + (tmp_path / "out").read_text()
    seen = ranks_see(tmp_path / "run")
    in_step_of_the_script = ranks_see(tmp_path / "spmd" / "run")
    # What srun itself was told, and is not ours to change.
    del in_step_of_the_script["SLURM_EXPORT_ENV"]
    assert seen == in_step_of_the_script
    assert "/bin" in seen.pop("PATH")
    assert seen == {"OMP_NUM_THREADS": "2", "FROM_SETUP": "1"}
