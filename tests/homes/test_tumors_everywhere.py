"""From HDF5 through a scaler and a model to predictions: the same on a laptop and in a job."""

from __future__ import annotations

import re
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpctrain import Result
from hpctrain.testing.slurm import VirtualCluster
from tests.processes import run_python

TUMORS = Path(__file__).parents[2] / "examples" / "tumors.py"
TIMEOUT_S = 180


def score(storage: Path, environ: dict[str, str], *options: str) -> tuple[float, np.ndarray]:
    """Return the AUC that the example prints, and its predictions."""
    done = run_python(
        TUMORS, f"--storage={storage}", *options, environ=environ, timeout_s=TIMEOUT_S
    )
    auc = re.search(r"held-out AUC +(\d\.\d+)", done.stdout)
    assert auc is not None
    (output,) = storage.glob("*.h5")
    with h5py.File(output) as file:
        assert file["benign"].shape == (114,)
        return float(auc[1]), file["predictions"][()]


@pytest.mark.slurm
@pytest.mark.parametrize(
    "model", ["xgboost", pytest.param("lightgbm", marks=pytest.mark.long), "torch"]
)
def test_a_job_on_two_nodes_predicts_what_a_laptop_does(
    virtual_slurm: VirtualCluster, tmp_path: Path, model: str
) -> None:
    laptop, job = tmp_path / "laptop", tmp_path / "job"
    auc, predictions = score(laptop, {"HPCTRAIN_LAUNCHER": "local"}, f"--model={model}")
    assert auc > 0.94
    on_nodes = score(
        job, {**virtual_slurm.environ, "HPCTRAIN_LAUNCHER": ""}, f"--model={model}", "--nodes=2"
    )
    assert on_nodes[0] == auc
    assert np.array_equal(on_nodes[1], predictions)
    for name in (f"tumors-{model}", f"tumors-{model}-scores"):
        result = Result.from_path(job / name)
        assert (len(result.job_ids), len(result.nodes)) == (1, 2)
