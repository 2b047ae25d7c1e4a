"""``hpctrain predict`` on real files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
import xgboost

from hpctrain.predict.features import ModelFeatures
from hpctrain.torch import TorchCheckpoint

X = np.random.default_rng(0).normal(size=(500, 3)).astype("f4")

NET = """
import torch


def make_net():
    return torch.nn.Linear(3, 1)
"""


@pytest.fixture
def folder(tmp_path) -> Path:
    """A directory with rows, a checkpoint, and a module of the user's own."""
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file["x"] = X
        file["id"] = np.arange(500)
    names = tuple(f"x_{i}" for i in range(3))
    data = xgboost.DMatrix(X, X[:, 0] > 0, feature_names=names)
    (tmp_path / "trees").mkdir()
    xgboost.train({"objective": "binary:logistic"}, data, 4).save_model(
        tmp_path / "trees" / "model.ubj"
    )
    ModelFeatures(framework="xgboost", features=names).write(tmp_path / "trees")
    (tmp_path / "my_nets.py").write_text(NET)
    return tmp_path


def hpctrain(folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hpctrain.cli", "predict", *map(str, words)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.mpi
def test_files_are_scored_on_ranks_without_a_line_of_python(folder):
    words = ["--checkpoint", "trees", "-i", "rows.h5", "-o", "s.h5", "--keep", "id"]
    done = hpctrain(folder, *words, "--workers", 2, "--batch-size", 100, "--launcher", "local")
    assert done.returncode == 0, done.stderr
    assert "500 rows" in done.stderr
    booster = xgboost.Booster(model_file=folder / "trees" / "model.ubj")
    expected = booster.predict(xgboost.DMatrix(X, feature_names=booster.feature_names))
    with h5py.File(folder / "s.h5") as file:
        assert np.array_equal(file["predictions"][()], expected)
        assert np.array_equal(file["id"][()], np.arange(500))
    assert json.loads((folder / "hpctrain_runs" / "predict-s.h5" / "status.json").read_text())
    # The same command again.
    again = hpctrain(folder, *words, "--workers", 2, "--batch-size", 100, "--launcher", "local")
    assert again.returncode == 0, again.stderr


def test_a_torch_model_is_made_by_a_function_of_ones_own(folder):
    net = torch.nn.Linear(3, 1)
    TorchCheckpoint.from_model(net, path=folder / "net")
    done = hpctrain(
        folder,
        *("--checkpoint", "net", "-i", "rows.h5", "-o", "s.parquet", "--features", "x"),
        *("--model", "my_nets:make_net", "--workers", 0),
    )
    assert done.returncode == 0, done.stderr
    import pyarrow.parquet

    scored = pyarrow.parquet.read_table(folder / "s.parquet")["predictions"].combine_chunks()
    with torch.inference_mode():
        assert np.allclose(scored.to_numpy_ndarray(), net(torch.from_numpy(X)).numpy())


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--checkpoint", "nowhere", "-i", "rows.h5", "-o", "s.h5"], "does not exist"),
        (["--checkpoint", "trees", "-i", "rows.txt", "-o", "s.h5"], "is unknown. Give files"),
        (["--checkpoint", "trees", "-i", "rows.h5", "-o", "s.txt"], "is unknown. Give a path"),
        (["--checkpoint", "trees", "-i", "rows.h5", "-o", "s.h5"], "has 'id', which the model"),
        (["--checkpoint", ".", "-i", "rows.h5", "-o", "s.h5"], "its predictor is unknown"),
        (
            ["--checkpoint", "trees", "--predictor", "my_nets:Net", "-i", "rows.h5", "-o", "s.h5"],
            "'my_nets:Net' cannot be imported",
        ),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_started(folder, words, complaint):
    done = hpctrain(folder, *words, "--workers", 1)
    assert done.returncode == 2
    assert complaint in done.stderr
    assert not (folder / "hpctrain_runs").exists()


def test_a_dry_run_shows_the_plan(folder):
    words = ["--checkpoint", "trees", "-i", "rows.h5", "-o", "s.h5", "--keep", "id"]
    done = hpctrain(folder, *words, "--workers", 2, "--launcher", "local", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "2" in done.stdout
    assert not (folder / "s.h5").exists()
