"""Batch prediction where the ranks are there already, and where they are a job of Slurm."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpctrain import Result
from hpctrain.testing.slurm import VirtualCluster

X = np.arange(3000.0).reshape(1000, 3)

SCRIPT = """
import sys

import hpctrain
from hpctrain.predict import BatchPredictor, Predictor


class Sums(Predictor):
    @classmethod
    def from_checkpoint(cls, checkpoint, **kwargs):
        return cls()

    def _predict_numpy(self, data):
        return {"sum": data["x"].sum(axis=1)}


if __name__ == "__main__":
    nodes = int(sys.argv[1])
    scores = BatchPredictor.from_checkpoint(hpctrain.Checkpoint("model"), Sums).predict(
        "rows.h5",
        batch_size=10,
        output="scores.h5",
        scaling_config=hpctrain.ScalingConfig(
            num_workers=2, slurm=hpctrain.SlurmConfig(nodes=nodes, time=5)
        ),
        run_config=hpctrain.RunConfig(name="scores", storage_path="runs"),
    )
    sys.stdout.write(f"{scores.num_rows} rows are there\\n")
"""


@pytest.fixture
def folder(tmp_path) -> Path:
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file["x"] = X
    (tmp_path / "model").mkdir()
    (tmp_path / "score.py").write_text(SCRIPT)
    return tmp_path


def check(folder: Path) -> Result:
    with h5py.File(folder / "scores.h5") as file:
        assert np.array_equal(file["sum"][()], X.sum(axis=1))
    result = Result.from_path(folder / "runs" / "scores")
    assert sum(result.metrics["rows_of_ranks"]) == 1000
    return result


@pytest.mark.mpi
def test_ranks_that_are_there_already_score_together(folder):
    mpiexec = Path(sys.executable).with_name("mpiexec")
    done = subprocess.run(
        [mpiexec, "-n", "2", sys.executable, "score.py", "1"],
        cwd=folder,
        env={k: v for k, v in os.environ.items() if k != "HPCTRAIN_LAUNCHER"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("1000 rows are there") == 2
    assert done.stderr.count("on 2 ranks") == 1
    assert len(check(folder).metrics["rows_of_ranks"]) == 2


@pytest.mark.slurm
def test_from_a_login_node_it_is_a_job(folder, virtual_slurm: VirtualCluster):
    done = virtual_slurm.run_on(
        "head", [sys.executable, "score.py", "2"], cwd=folder, timeout_s=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1000 rows are there" in done.stdout
    result = check(folder)
    assert len(result.job_ids) == 1
    assert len(result.nodes) == 2
