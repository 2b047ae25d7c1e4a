"""Loggers of a run with MPI ranks, one of which fails and is started again."""

from __future__ import annotations

import csv
import tempfile
from pathlib import Path
from typing import Any

import pytest

import hpctrain
from hpctrain import Checkpoint, DataParallelTrainer, FailureConfig, RunConfig, ScalingConfig
from hpctrain.callbacks import CSVLoggerCallback, MLflowLoggerCallback
from hpctrain.callbacks.mlflow_store import file_store


def _train(config: dict[str, Any]) -> None:
    rank = hpctrain.get_context().get_world_rank()
    found = hpctrain.get_checkpoint()
    for step in range(1 if found is None else 3, 5):
        metrics = {"loss": config["lr"] / step, "rank": rank, "resumed": found is not None}
        if step == 2:
            with tempfile.TemporaryDirectory() as directory:
                (Path(directory) / f"state-{rank}").touch()
                hpctrain.report(metrics, checkpoint=Checkpoint.from_directory(directory))
        else:
            hpctrain.report(metrics)
        if step == 3 and found is None:
            # Both ranks have made the report before one of them fails.
            hpctrain.collective.barrier()
            if rank == 1:
                raise RuntimeError("a failure")


@pytest.mark.mpi
def test_a_run_that_restarts_has_one_record_and_each_report_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("HPCTRAIN_LAUNCHER", "local")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    result = DataParallelTrainer(
        _train,
        train_loop_config={"lr": 1.0},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            name="run",
            storage_path=tmp_path,
            verbose=0,
            failure_config=FailureConfig(max_failures=1),
            callbacks=[CSVLoggerCallback(), MLflowLoggerCallback()],
        ),
    ).fit()
    with (result.path / "progress.csv").open(newline="") as file:
        rows = [(r["training_iteration"], r["resumed"]) for r in csv.DictReader(file)]
    assert rows == [("1", "false"), ("2", "false"), ("3", "true"), ("4", "true")]
    client = mlflow.MlflowClient(file_store(result.path))
    (run,) = client.search_runs(["0"])
    history = client.get_metric_history(run.info.run_id, "loss")
    assert [m.step for m in history] == [1, 2, 3, 4]
    assert (run.info.status, run.data.params) == ("FINISHED", {"lr": "1.0"})
