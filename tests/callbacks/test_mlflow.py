"""MLflow, as the trials of a sweep use it at the same time."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import hpctrain
from hpctrain import DataParallelTrainer, RunConfig, ScalingConfig, environ
from hpctrain.callbacks import MLflowLoggerCallback
from hpctrain.callbacks.mlflow_store import (
    allow_file_store,
    file_store,
    find_or_make_experiment,
    is_file_store,
)


@pytest.mark.parametrize("is_path", [False, True])
def test_trials_that_begin_at_the_same_time_are_in_one_experiment(
    tmp_path: Path, is_path: bool
) -> None:
    mlflow = pytest.importorskip("mlflow")
    uri = file_store(tmp_path / "a run")
    if is_path:
        uri = str(tmp_path / "a run" / "mlruns")
    have_looked = threading.Barrier(2)

    class Client(mlflow.MlflowClient):  # type: ignore[misc, name-defined]
        has_looked = False

        def get_experiment_by_name(self, name: str) -> Any:
            found = super().get_experiment_by_name(name)
            if not self.has_looked:
                self.has_looked = True
                have_looked.wait(30)
            return found

    with ThreadPoolExecutor(2) as pool:
        clients = [Client(uri), Client(uri)]
        found = list(pool.map(lambda client: find_or_make_experiment(client, "sweep"), clients))
    assert found[0] == found[1]
    named = [each for each in mlflow.MlflowClient(uri).search_experiments() if each.name == "sweep"]
    assert [each.experiment_id for each in named] == found[:1]


def test_two_stores_have_one_mlflow_run_each_also_after_another_fit(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")

    def train() -> None:
        has_failed = (hpctrain.artifact_dir() / "failed").exists()
        hpctrain.report({"loss": 1.0})
        if not has_failed:
            (hpctrain.artifact_dir() / "failed").touch()
            raise RuntimeError("first")
        hpctrain.report({"loss": 2.0})

    uris = [file_store(tmp_path / "a"), file_store(tmp_path / "b")]
    trainer = DataParallelTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=0),
        run_config=RunConfig(
            name="run",
            storage_path=tmp_path,
            verbose=0,
            callbacks=[MLflowLoggerCallback(uri) for uri in uris],
        ),
    )
    with pytest.raises(RuntimeError, match="first"):
        trainer.fit()
    trainer.fit()
    for uri in uris:
        client = mlflow.MlflowClient(uri)
        (run,) = client.search_runs(["0"])
        history = client.get_metric_history(run.info.run_id, "loss")
        assert [metric.step for metric in history] == [1, 2]


def test_uris_of_servers_and_databases_are_no_file_stores() -> None:
    stores = ("mlruns", "./mlruns", "/a b/mlruns", "file:///mlruns", "file:mlruns")
    others = ("http://host:5000", "sqlite:///m.db", "databricks", "databricks://profile")
    assert all(map(is_file_store, stores))
    assert not any(map(is_file_store, others))


def test_only_file_stores_are_allowed_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "")
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE")
    for uri in (None, "http://host:5000", "databricks"):
        allow_file_store(uri)
        assert environ.variable("MLFLOW_ALLOW_FILE_STORE") is None
    allow_file_store("./mlruns")
    assert environ.variable("MLFLOW_ALLOW_FILE_STORE") == "true"
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "false")
    allow_file_store("./mlruns")
    assert environ.variable("MLFLOW_ALLOW_FILE_STORE") == "false"
