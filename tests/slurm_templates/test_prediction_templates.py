"""The templates that need no script, on a cluster: a job scores files, and a job serves."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
import xgboost

from hpctrain import Result, ScalingConfig, SlurmConfig
from hpctrain.plan.template import render_template
from hpctrain.predict.features import ModelFeatures

pytestmark = pytest.mark.slurm

X = np.random.default_rng(0).normal(size=(1000, 3)).astype("f4")
NAMES = ("x_0", "x_1", "x_2")


@pytest.fixture
def folder(tmp_path) -> Path:
    """Rows, and a checkpoint."""
    if not Path(sys.executable).with_name("mpiexec").exists():
        pytest.skip("no MPI wheel beside this Python: pip install 'hpctrain[local]'")
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file["x"] = X
        file["id"] = np.arange(1000)
    data = xgboost.DMatrix(X, X[:, 0], feature_names=NAMES)
    (tmp_path / "trees").mkdir()
    xgboost.train({}, data, 4).save_model(tmp_path / "trees" / "model.ubj")
    ModelFeatures(framework="xgboost", features=NAMES).write(tmp_path / "trees")
    return tmp_path


def submit(cluster, folder: Path, name: str, scaling: ScalingConfig, *words: str) -> None:
    (folder / name).write_text(render_template(name, script="", scaling=scaling))
    done = cluster.run_on(
        "head", ["sbatch", "--output=job.out", name, *words], cwd=folder, timeout_s=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def setup() -> list[str]:
    return [f'export PATH="{Path(sys.executable).parent}:$PATH"']


def await_log(folder: Path, pattern: str, *, timeout_s: float = 90) -> re.Match[str]:
    deadline = time.monotonic() + timeout_s
    said = "nothing"
    while time.monotonic() < deadline:
        if (folder / "job.out").exists():
            said = (folder / "job.out").read_text()
            if found := re.search(pattern, said):
                return found
        time.sleep(0.2)
    pytest.fail(f"no {pattern!r} within {timeout_s} s. The job said: {said}")


def test_a_job_scores_files_on_two_nodes(virtual_slurm, folder):
    scaling = ScalingConfig(num_workers=4, slurm=SlurmConfig(nodes=2, setup=setup(), time=5))
    words = ["trees", "rows.h5", "scores.h5", "--keep", "id", "--batch-size", "50"]
    submit(virtual_slurm, folder, "predict.sbatch", scaling, *words)
    await_log(folder, r"1000 rows, .* on 4 ranks")

    with h5py.File(folder / "scores.h5") as file:
        assert np.array_equal(file["id"][()], np.arange(1000))
        scored = file["predictions"][()]
    booster = xgboost.Booster(model_file=folder / "trees" / "model.ubj")
    assert np.array_equal(scored, booster.inplace_predict(X))
    result = Result.from_path(folder / "hpctrain_runs" / "predict-scores.h5")
    assert len(result.nodes) == 2


def test_a_job_serves_a_checkpoint_to_other_nodes(virtual_slurm, folder):
    token = folder / "token"
    token.write_text("a-token-of-the-job")
    token.chmod(0o600)
    scaling = ScalingConfig(num_workers=1, slurm=SlurmConfig(nodes=1, setup=setup(), time=5))
    submit(virtual_slurm, folder, "serve.sbatch", scaling, "trees", "token")
    url = await_log(folder, r"url=(http://\S+)  ready=True")[1]

    call = (
        "import httpx; print(httpx.post(%r, json={'columns': {'x_0': [1], 'x_1': [0], 'x_2': [0]}},"
        " headers={'Authorization': 'Bearer ' + open('token').read()}).text)"
    )
    done = virtual_slurm.run_on(
        "head", [sys.executable, "-c", call % f"{url}/predict"], cwd=folder, timeout_s=60
    )
    assert '{"columns":{"predictions":[' in done.stdout, done.stdout + done.stderr
    run = folder / "hpctrain_runs" / "serve-trees"
    cancel = [sys.executable, "-m", "hpctrain.cli", "cancel", str(run)]
    virtual_slurm.run_on("head", cancel, cwd=folder, timeout_s=60)
    await_log(folder, "stopped")
