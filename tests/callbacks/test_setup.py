"""``setup_mlflow`` and ``setup_wandb`` inside a training function."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hpctrain
from hpctrain import DataParallelTrainer, RunConfig, ScalingConfig
from hpctrain.callbacks import setup_mlflow, setup_wandb
from hpctrain.callbacks.mlflow import _Nothing
from hpctrain.callbacks.mlflow_store import file_store


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_MODE", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")


def _fail_and_resume(train: Any, tmp_path: Path) -> Path:
    trainer = DataParallelTrainer(
        train,
        train_loop_config={"lr": 0.1},
        scaling_config=ScalingConfig(num_workers=0),
        run_config=RunConfig(name="run", storage_path=tmp_path, verbose=0),
    )
    with pytest.raises(RuntimeError, match="first"):
        trainer.fit()
    trainer.fit()
    return tmp_path / "run"


def test_an_attempt_that_resumes_goes_on_in_the_same_run_of_mlflow(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")

    def train(config: dict[str, Any]) -> None:
        tracker = setup_mlflow(config, experiment_name="an experiment", tags={"team": "x"})
        first = not (hpctrain.artifact_dir() / "begun").exists()
        (hpctrain.artifact_dir() / "begun").touch()
        tracker.log_metric("loss", 1.0 if first else 2.0, step=1 if first else 2)
        tracker.end_run()
        if first:
            raise RuntimeError("first")

    client = mlflow.MlflowClient(file_store(_fail_and_resume(train, tmp_path)))
    (run,) = client.search_runs([client.get_experiment_by_name("an experiment").experiment_id])
    history = client.get_metric_history(run.info.run_id, "loss")
    assert [(m.step, m.value) for m in history] == [(1, 1.0), (2, 2.0)]
    assert (run.data.params, run.data.tags["team"]) == ({"lr": "0.1"}, "x")


def test_an_attempt_that_resumes_goes_on_in_the_same_run_of_wandb(tmp_path: Path) -> None:
    pytest.importorskip("wandb")

    def train(config: dict[str, Any]) -> None:
        run = setup_wandb(config, project="p")
        run.log({"loss": 1.0})
        run.finish()
        if not (hpctrain.artifact_dir() / "begun").exists():
            (hpctrain.artifact_dir() / "begun").touch()
            raise RuntimeError("first")

    parts = [*_fail_and_resume(train, tmp_path).glob("wandb/offline-run-*/run-*.wandb")]
    assert (len(parts), len({part.name for part in parts})) == (2, 1)


def test_what_other_ranks_get_of_mlflow_does_nothing() -> None:
    nothing = _Nothing()
    with nothing.start_run(run_name="x") as run:
        assert run.info.run_id.anything(1, a=2) is nothing
