"""The example has the same losses on this machine and in a job on two nodes."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
from sklearn.datasets import load_digits

from hpctrain import Result
from hpctrain.tensorflow import TensorflowPredictor
from hpctrain.testing.slurm import VirtualCluster
from tests.processes import run_python

EXAMPLE = Path(__file__).parents[2] / "examples" / "tensorflow_digits.py"
TIMEOUT_S = 180


def run(storage: Path, environ: dict[str, str], *options: str) -> Result:
    run_python(EXAMPLE, f"--storage-path={storage}", *options, environ=environ, timeout_s=TIMEOUT_S)
    return Result.from_path(storage / "tensorflow-digits")


@pytest.mark.slurm
def test_a_job_on_two_nodes_trains_and_predicts_what_a_laptop_does(
    virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    options = ("--num-workers=4", "--epochs=3")
    laptop = run(tmp_path / "laptop", {"HPCTRAIN_LAUNCHER": "local"}, *options)
    cluster = {**virtual_slurm.environ, "HPCTRAIN_LAUNCHER": ""}
    job = run(tmp_path / "job", cluster, *options, "--nodes=2")
    assert (len(job.job_ids), len(job.nodes)) == (1, 2)
    assert job.metrics_history == laptop.metrics_history
    assert laptop.metrics["accuracy"] > 0.9
    scores = []
    for storage in ("laptop", "job"):
        with h5py.File(tmp_path / storage / "tensorflow-digits.h5") as file:
            scores.append(file["predictions"][()])
    assert np.array_equal(*scores)
    images = load_digits().images[::5, :, :, None] / 16
    predictor = TensorflowPredictor.from_checkpoint(laptop.checkpoint, trusted=True)
    # Of other batches, with as many threads as this machine has cores.
    np.testing.assert_allclose(
        scores[0], predictor.predict(images)["predictions"], rtol=1e-4, atol=1e-4
    )
