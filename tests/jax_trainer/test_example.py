"""The example with sharded arrays: in several homes, through a kill, and its predictions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")
pytest.importorskip("orbax.checkpoint")

from hpctrain import FailureConfig, Result, RunConfig, ScalingConfig
from hpctrain.data import from_numpy
from hpctrain.jax import JaxPredictor, JaxTrainer
from hpctrain.predict import BatchPredictor
from hpctrain.testing.slurm import VirtualCluster
from tests.runs import reported

EXAMPLES = Path(__file__).parents[2] / "examples"
CONFIG = {"epochs": 3, "lr": 0.05, "batch_size": 64, "seed": 7}


@pytest.fixture
def sharded_digits(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import sharded_digits

    return sharded_digits


@pytest.mark.slurm
def test_a_cluster_of_two_nodes_gives_the_losses_of_this_machine(
    example: Any, virtual_slurm: VirtualCluster, tmp_path: Path
) -> None:
    cluster = {**virtual_slurm.environ, "HPCTRAIN_LAUNCHER": ""}
    there = example("there", "--nodes=2", environ=cluster, storage=tmp_path)
    here = example("here", environ={"HPCTRAIN_LAUNCHER": "local"}, storage=tmp_path)
    assert reported(there) == reported(here)
    assert len(Result.from_path(there).nodes) == 2


@pytest.mark.mpi
def test_the_ranks_learn_what_one_rank_learns(
    on_two_ranks: Path, sharded_digits: Any, tmp_path: Path
) -> None:
    JaxTrainer(
        sharded_digits.train_digits,
        train_loop_config=CONFIG,
        scaling_config=ScalingConfig(num_workers=0),
        run_config=RunConfig(storage_path=tmp_path, name="one", verbose=0),
    ).fit()
    losses = [[m["loss"] for m in reported(run)] for run in (on_two_ranks, tmp_path / "one")]
    # The halves of a batch are added up in another order: float32, 22 steps an epoch.
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert reported(on_two_ranks)[-1]["accuracy"] > 0.9


@pytest.mark.mpi
def test_a_killed_rank_costs_no_step_and_changes_no_number(
    on_two_ranks: Path, sharded_digits: Any, tmp_path: Path
) -> None:
    def train_and_be_killed(config: dict[str, Any]) -> dict[str, Any]:
        import os
        import signal

        import sharded_digits

        import hpctrain

        world, report = hpctrain.get_context().world, hpctrain.report

        def report_and_be_killed(metrics: Any, checkpoint: Any) -> None:
            report(metrics, checkpoint)
            if (metrics["epoch"], world.attempt, world.world_rank) == (1, 1, 1):
                os.kill(os.getpid(), signal.SIGKILL)

        hpctrain.report = report_and_be_killed
        return sharded_digits.train_digits(config)

    result = JaxTrainer(
        train_and_be_killed,
        train_loop_config=CONFIG,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            storage_path=tmp_path,
            name="killed",
            launcher="local",
            failure_config=FailureConfig(max_failures=1),
        ),
    ).fit()
    assert len(result.attempts) == 2
    assert reported(tmp_path / "killed") == reported(on_two_ranks)


@pytest.mark.mpi
def test_every_rank_digests_what_it_wrote(on_two_ranks: Path) -> None:
    checkpoint = Result.from_path(on_two_ranks).checkpoint
    manifest = json.loads((checkpoint.path / ".hpctrain-manifest.json").read_text())
    files = {entry[0] if isinstance(entry, list) else entry["path"] for entry in manifest["files"]}
    for process in (0, 1):
        assert any(name.startswith(f"state/ocdbt.process_{process}/d/") for name in files)
    assert {"features.json", "state/manifest.ocdbt"} <= files


@pytest.mark.mpi
def test_its_checkpoint_predicts_what_it_has_learnt(
    on_two_ranks: Path, sharded_digits: Any, tmp_path: Path
) -> None:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    held_out = np.arange(len(labels)) % 5 == 0
    images, labels = (images[held_out] / 16).astype("f4"), labels[held_out]
    checkpoint = Result.from_path(on_two_ranks).checkpoint
    predictor = JaxPredictor.from_checkpoint(checkpoint, model=sharded_digits.predict_digits)
    scores = predictor.predict(images)["predictions"]
    accuracy = (scores.argmax(axis=1) == labels).mean()
    assert accuracy == pytest.approx(reported(on_two_ranks)[-1]["accuracy"])

    columns = from_numpy({"images": images})
    batches = BatchPredictor(checkpoint, JaxPredictor, model=sharded_digits.predict_digits)
    predicted = batches.predict(
        columns,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=tmp_path, launcher="local"),
    )
    assert np.allclose(predicted.to_numpy()["predictions"], scores, rtol=1e-5, atol=1e-6)


@pytest.mark.mpi
def test_its_checkpoint_is_predicted_with_from_a_shell(
    on_two_ranks: Path, sharded_digits: Any, tmp_path: Path
) -> None:
    from sklearn.datasets import load_digits

    np.save(tmp_path / "images.npy", (load_digits().data[:20] / 16).astype("f4"))
    done = subprocess.run(
        [
            *(sys.executable, "-m", "hpctrain.cli", "predict", "--checkpoint", str(on_two_ranks)),
            *("--input", str(tmp_path / "images.npy"), "--output", str(tmp_path / "scores.npy")),
            *("--model", "sharded_digits:predict_digits", "--workers", "0"),
            *("--storage", str(tmp_path / "runs")),
        ],
        cwd=EXAMPLES,
        env={**os.environ, "HPCTRAIN_LAUNCHER": "local"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert np.load(tmp_path / "scores.npy").shape == (20, 10)
