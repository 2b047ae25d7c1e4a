"""Each trial of a sweep has a record of its own in each tracker, read back with its library."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import hpctrain
from hpctrain import Checkpoint, Result, RunConfig, tune
from hpctrain.callback import RunContext
from hpctrain.callbacks import (
    CometLoggerCallback,
    CSVLoggerCallback,
    MLflowLoggerCallback,
    PrometheusCallback,
    TBXLoggerCallback,
    WandbLoggerCallback,
)
from hpctrain.callbacks.mlflow_store import file_store
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus
from hpctrain.rundir.sweep import sweep_of
from hpctrain.tune.ledger import SweepPaths
from hpctrain.tune.person_stops import request_stop
from hpctrain.tune.schedulers import PopulationBasedTraining
from tests.callbacks.records import comet_messages, wandb_history, wandb_parts
from tests.waiting import wait_until

TRIALS = ("trial_00000", "trial_00001")


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCTRAIN_LAUNCHER", "local")
    for name in ("WANDB_MODE", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    # What a logger exports is taken back after the test.
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")


def train(config: dict[str, Any]) -> None:
    for step in range(2):
        hpctrain.report({"loss": config["lr"] * (step + 1)})


def run_sweep(storage: Path, *callbacks: Any) -> Path:
    """Run two trials that differ in one value, and return the directory of the sweep."""
    grid = tune.Tuner(
        train,
        param_space={"lr": tune.grid_search([0.5, 2.0]), "opt": {"name": "sgd"}},
        run_config=RunConfig(
            storage_path=storage, name="my.sweep", verbose=0, callbacks=list(callbacks)
        ),
        tune_config=tune.TuneConfig(max_concurrent_trials=2),
    ).fit()
    assert not grid.errors
    # Loggers are closed after the state of a run is final.
    wait_until(lambda: all(has_ended(result.status.owner_pid) for result in grid))
    return Path(grid.experiment_path)


def has_ended(pid: int) -> bool:
    """Return whether a process is gone, or waits to be collected."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_mlflow_has_a_run_for_each_trial_in_the_experiment_of_the_sweep(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    uri = file_store(tmp_path)
    run_sweep(tmp_path, MLflowLoggerCallback(uri))
    client = mlflow.MlflowClient(uri)
    experiment = client.get_experiment_by_name("my.sweep")
    found = client.search_runs([experiment.experiment_id])
    assert {run.info.run_name: run.data.params for run in found} == {
        "trial_00000": {"lr": "0.5", "opt/name": "sgd"},
        "trial_00001": {"lr": "2.0", "opt/name": "sgd"},
    }
    assert sorted(run.data.metrics["loss"] for run in found) == [1.0, 4.0]
    assert {run.data.tags["hpctrain.sweep"] for run in found} == {"my.sweep"}
    assert {run.info.status for run in found} == {"FINISHED"}


def test_wandb_has_a_run_for_each_trial_in_a_group(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    sweep = run_sweep(tmp_path, WandbLoggerCallback(project="p"))
    ids = set()
    for trial, lr in zip(TRIALS, (0.5, 2.0), strict=True):

        def is_written(trial: str = trial) -> bool:
            # wandb's own process closes a file after finish() has returned.
            return any(r.HasField("exit") for part in wandb_parts(sweep / trial) for r in part)

        wait_until(is_written)
        (records,) = wandb_parts(sweep / trial)
        (run,) = [r.run for r in records if r.HasField("run")][:1]
        assert (run.display_name, run.run_group, run.project) == (trial, "my.sweep", "p")
        config = {update.key: json.loads(update.value_json) for update in run.config.update}
        assert (config["lr"], config["opt"]) == (lr, {"name": "sgd"})
        assert [row["loss"] for row in wandb_history(records)] == [lr, 2 * lr]
        ids.add(run.run_id)
    assert len(ids) == 2


def test_tensorboard_and_csv_show_each_trial_by_its_name(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    sweep = run_sweep(tmp_path, TBXLoggerCallback(), CSVLoggerCallback())
    for trial, lr in zip(TRIALS, (0.5, 2.0), strict=True):
        # `tensorboard --logdir SWEEP` calls a run by its directory.
        events = reading.EventAccumulator(str(sweep / trial))
        events.Reload()
        assert [each.value for each in events.Scalars("loss")] == [lr, 2 * lr]
        # The hyperparameters are in a plugin's own message.
        assert events.PluginTagToContent("hparams")
        assert (sweep / trial / "progress.csv").read_text().count("\n") == 3


# comet_ml leaves a socket open.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_comet_has_an_experiment_for_each_trial_with_the_sweep_as_a_tag(tmp_path: Path) -> None:
    pytest.importorskip("comet_ml")
    sweep = run_sweep(tmp_path, CometLoggerCallback(tags=["mine"], project_name="p"))
    ids = set()
    for trial in TRIALS:
        (messages,) = comet_messages(sweep / trial)
        ids.add(messages[0]["offline_id"])
        assert set(messages[0]["tags"]) == {"my.sweep", "mine"}
        assert [m["value"] for m in messages if m.get("key") == "Name"] == [trial]
    assert len(ids) == 2


def train_on(config: dict[str, Any]) -> None:
    """Report, with checkpoints, until there is a file."""
    checkpoint = hpctrain.get_checkpoint()
    step = 0 if checkpoint is None else checkpoint.to_dict()["step"]
    while True:
        step += 1
        saved = Checkpoint.from_dict({"step": step})
        hpctrain.report({"m": config["lr"], "step": step}, checkpoint=saved)
        if Path(config["go"]).exists():
            return
        time.sleep(0.02)


def events(sweep: Path) -> list[str]:
    path = sweep / "tune.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line)["event"] for line in lines]


def stop_once_cloned(sweep: Path) -> None:
    """Stop a sweep, as ``hpctrain tune stop`` does, in which trials were paused and cloned."""
    wait_until(lambda: {"trial-cloned", "trial-paused"} <= set(events(sweep)), timeout_s=120)
    request_stop(SweepPaths(root=sweep), now=False)


def stop_and_go_on(folder: Path, *callbacks: Any) -> list[Result]:
    """Run two trials, one of which is paused and cloned, and restore the sweep."""
    go, sweep = folder / "go", folder / "my.sweep"
    tuner = tune.Tuner(
        train_on,
        param_space={"lr": tune.grid_search([4.0, 1.0]), "go": str(go)},
        run_config=RunConfig(
            storage_path=folder, name=sweep.name, verbose=0, callbacks=list(callbacks)
        ),
        tune_config=tune.TuneConfig(
            metric="m",
            mode="max",
            max_concurrent_trials=2,
            scheduler=PopulationBasedTraining(
                time_attr="training_iteration",
                perturbation_interval=2,
                quantile_fraction=0.5,
                hyperparam_mutations={"lr": [1.0, 4.0]},
            ),
        ),
    )
    person = threading.Thread(target=stop_once_cloned, args=(sweep,))
    person.start()
    with pytest.raises(hpctrain.RunStoppedError):
        tuner.fit()
    person.join()
    go.touch()
    grid = tune.Tuner.restore(sweep, train_on).fit()
    assert not grid.errors
    wait_until(lambda: all(has_ended(result.status.owner_pid) for result in grid))
    results = list(grid)
    assert all(len(result.attempts) > 1 for result in results), "several processes a trial"
    return results


def steps_of(result: Result) -> list[tuple[int, int]]:
    """Return the number of each report, and the step of the model, which a clone has inherited."""
    return [(n, line["step"]) for n, line in enumerate(result.metrics_history, 1)]


def test_mlflow_has_one_run_of_a_trial_that_is_cloned_stopped_and_restored(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    uri = file_store(tmp_path)
    results = stop_and_go_on(tmp_path, MLflowLoggerCallback(uri))
    client = mlflow.MlflowClient(uri)
    experiment = client.get_experiment_by_name("my.sweep")
    runs = client.search_runs([experiment.experiment_id])
    ids = {run.info.run_name: run.info.run_id for run in runs}
    assert len(runs) == 2
    assert set(ids) == set(TRIALS)
    assert {run.info.status for run in runs} == {"FINISHED"}
    for result in results:
        history = client.get_metric_history(ids[result.path.name], "step")
        assert [(entry.step, entry.value) for entry in history] == steps_of(result)


def test_wandb_has_one_run_of_a_trial_that_is_cloned_stopped_and_restored(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    for result in stop_and_go_on(tmp_path, WandbLoggerCallback(project="p")):

        def rows(path: Path = result.path) -> list[tuple[int, int]]:
            parts = [wandb_history(records) for records in wandb_parts(path)]
            return [(row["_step"], row["step"]) for part in parts for row in part]

        expected = steps_of(result)
        # wandb's own process closes a file after finish() has returned.
        wait_until(lambda rows=rows, expected=expected: len(rows()) >= len(expected))
        assert rows() == expected
        parts = wandb_parts(result.path)
        assert len(parts) > 1
        started = [r.run for records in parts for r in records if r.HasField("run")]
        assert len({run.run_id for run in started}) == 1
        assert {run.display_name for run in started} == {result.path.name}


@pytest.mark.parametrize("name", ["", "all.prom"])
def test_prometheus_has_a_file_for_each_trial(tmp_path: Path, name: str) -> None:
    pytest.importorskip("prometheus_client")
    files = tmp_path / "files"
    files.mkdir()
    run_sweep(tmp_path, PrometheusCallback(files / name))
    stem = "all" if name else "hpctrain"
    assert sorted(path.name for path in files.iterdir()) == [
        f"{stem}_my.sweep_{trial}.prom" for trial in TRIALS
    ]
    text = (files / f"{stem}_my.sweep_trial_00001.prom").read_text()
    assert 'hpctrain_metric{job_id="",name="loss",run="my.sweep/trial_00001"} 4.0' in text


def test_a_group_and_an_experiment_that_are_given_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("wandb")
    uri = file_store(tmp_path)
    (tmp_path / "tune.jsonl").touch()
    path = tmp_path / "trial"
    path.mkdir()
    assert sweep_of(path) == tmp_path.name
    context = RunContext(
        name="trial", path=path, attempt=1, world_size=1, report=1, sweep=tmp_path.name
    )
    status = RunStatus(name="trial", state=RunState.FINISHED, launcher="local")
    for number, (experiment, variable) in enumerate([("given", ""), (None, "of the shell")]):
        if variable:
            monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", variable)
        logger = MLflowLoggerCallback(f"{uri}{number}", experiment_name=experiment)
        logger.on_submit({})
        logger.after_report(context, [{"loss": 1.0}], None)
        logger.on_finish(context, Result(path=path, status=status, error=None))
        client = mlflow.MlflowClient(f"{uri}{number}")
        found = client.get_experiment_by_name(experiment or variable)
        assert len(client.search_runs([found.experiment_id])) == 1
    wandb = WandbLoggerCallback(group="given")
    wandb.on_submit({})
    wandb.after_report(context, [{"loss": 1.0}], None)
    wandb.on_finish(context, Result(path=path, status=status, error=None))
    wait_until(lambda: any(r.HasField("run") for part in wandb_parts(path) for r in part))
    groups = {r.run.run_group for part in wandb_parts(path) for r in part if r.HasField("run")}
    assert groups == {"given"}


def test_a_run_that_is_no_trial_is_of_no_sweep(tmp_path: Path) -> None:
    assert sweep_of(tmp_path / "run") is None
    (tmp_path / "tune.jsonl").mkdir()
    assert sweep_of(tmp_path / "run") is None


def test_a_directory_that_cannot_be_looked_into_is_of_no_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tune.jsonl").touch()
    assert sweep_of(tmp_path / "run") == tmp_path.name

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    # Root may look into all of them.
    monkeypatch.setattr("os.stat", refuse)
    assert sweep_of(tmp_path / "run") is None
