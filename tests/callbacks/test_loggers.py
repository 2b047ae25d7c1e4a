"""Loggers with their own libraries: what they wrote is read back as each library reads it."""

from __future__ import annotations

import csv
import gc
import json
import math
import pickle
import struct
import subprocess
import sys
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hpctrain import Checkpoint, ConfigError, Result
from hpctrain.callback import RunContext
from hpctrain.callbacks import (
    CometLoggerCallback,
    CSVLoggerCallback,
    JsonLoggerCallback,
    LoggerCallback,
    MLflowLoggerCallback,
    TBXLoggerCallback,
    WandbLoggerCallback,
)
from hpctrain.callbacks.mlflow import file_store
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus
from hpctrain.worker.metrics import encode_line, encode_metrics

PARAMETERS = {"lr": 0.1, "opt": {"name": "sgd", "betas": [0.9, 0.99]}}


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_MODE", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    # What a logger exports is taken back after the test.
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")


class Run:
    """A run as the executor and rank 0 leave it: each job has an executor of its own."""

    def __init__(self, path: Path, logger: LoggerCallback) -> None:
        self.path = path
        path.mkdir(exist_ok=True)
        (path / "plan.json").write_text(json.dumps({"run_id": "0123456789abcdef"}))
        logger.on_submit(PARAMETERS)
        self._stored = pickle.dumps(logger)
        self.logger: LoggerCallback = pickle.loads(self._stored)
        self.attempt = 0
        self.report = 0

    def begin_job(self) -> None:
        """Unpickle the callback, as the executor of a job does; the last one was killed."""
        if (file := getattr(self.logger, "_file", None)) is not None:
            file.close()
        self.logger = pickle.loads(self._stored)

    def begin_attempt(self, report: int) -> None:
        self.attempt += 1
        self.report = report

    def context(self) -> RunContext:
        return RunContext(
            name="run", path=self.path, attempt=self.attempt, world_size=2, report=self.report
        )

    def write_line(self, metrics: Mapping[str, Any]) -> None:
        """Do what rank 0 does."""
        self.report += 1
        line = encode_line(self.report, self.attempt, b"null", encode_metrics(metrics))
        with (self.path / "metrics.jsonl").open("ab") as file:
            file.write(line)

    def make_report(self, metrics: Mapping[str, Any], checkpoint: Checkpoint | None = None) -> None:
        self.write_line(metrics)
        decoded = json.loads(encode_metrics(metrics))
        self.logger.after_report(self.context(), [decoded, {}], checkpoint)

    def finish(self, state: RunState) -> None:
        status = RunStatus(name="run", state=state, launcher="local")
        self.logger.on_finish(self.context(), Result(path=self.path, status=status, error=None))

    def fail_and_resume(self) -> None:
        """Make reports 1 to 4; resume from 2 in another job, and make 3 to 5."""
        self.begin_attempt(0)
        for number in range(1, 5):
            self.make_report({"loss": float(number), "val": {"acc": number / 10}})
        self.finish(RunState.FAILED)
        self.begin_job()
        self.begin_attempt(2)
        for number in range(3, 6):
            self.make_report({"loss": 10.0 * number, "val": {"acc": number / 10}})
        self.finish(RunState.FINISHED)


def test_rows_of_progress_csv_are_replaced_when_an_attempt_makes_them_again(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path / "run", CSVLoggerCallback())
    run.fail_and_resume()
    with (run.path / "progress.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(r["training_iteration"], r["loss"], r["val/acc"]) for r in rows] == [
        ("1", "1.0", "0.1"),
        ("2", "2.0", "0.2"),
        ("3", "30.0", "0.3"),
        ("4", "40.0", "0.4"),
        ("5", "50.0", "0.5"),
    ]


def test_a_column_that_comes_later_and_odd_values_are_read_back_from_progress_csv(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path / "a run%d", CSVLoggerCallback())
    run.begin_attempt(0)
    run.make_report({"loss": math.nan})
    run.make_report({"loss": math.inf, 'odd, "name"\n': "two\nlines", "list": [1, 2]})
    run.make_report({"best": True})
    # What a kill leaves of a row.
    with (run.path / "progress.csv").open("a") as file:
        file.write('4,17,"to')
    run.begin_job()
    run.begin_attempt(3)
    run.make_report({"loss": 4})
    run.finish(RunState.FINISHED)
    with (run.path / "progress.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [r["loss"] for r in rows] == ["NaN", "Infinity", "", "4"]
    assert [r['odd, "name"\n'] for r in rows] == ["", "two\nlines", "", ""]
    assert [r["list"] for r in rows] == ["", "[1, 2]", "", ""]
    assert [r["best"] for r in rows] == ["", "", "true", ""]


def test_an_attempt_without_a_report_drops_nothing(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", CSVLoggerCallback())
    run.begin_attempt(0)
    run.make_report({"loss": 1})
    run.make_report({"loss": 2})
    run.begin_job()
    run.begin_attempt(0)
    run.finish(RunState.FAILED)
    assert len((run.path / "progress.csv").read_text().splitlines()) == 3


def test_result_json_has_the_metrics_as_they_were_reported(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", JsonLoggerCallback())
    run.fail_and_resume()
    lines = [json.loads(line) for line in (run.path / "result.json").read_text().splitlines()]
    assert [(x["training_iteration"], x["loss"]) for x in lines] == [
        (1, 1.0),
        (2, 2.0),
        (3, 30.0),
        (4, 40.0),
        (5, 50.0),
    ]
    assert lines[0]["val"] == {"acc": 0.1}
    assert json.loads((run.path / "params.json").read_text()) == PARAMETERS


def test_tensorboard_shows_each_step_once_with_its_last_value(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorboardX")
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = Run(tmp_path / "run", TBXLoggerCallback())
    run.fail_and_resume()
    run.begin_attempt(5)
    run.make_report({"loss": math.inf, "note": "text"})
    run.make_report({"loss": 7, "note": "text"})
    run.finish(RunState.FINISHED)
    events = accumulator.EventAccumulator(str(run.path))
    events.Reload()
    loss = [(scalar.step, scalar.value) for scalar in events.Scalars("loss")]
    assert loss == [(1, 1.0), (2, 2.0), (3, 30.0), (4, 40.0), (5, 50.0), (6, math.inf), (7, 7.0)]
    assert [scalar.step for scalar in events.Scalars("val/acc")] == [1, 2, 3, 4, 5]
    hyperparameters = events.summary_metadata["_hparams_/session_start_info"]
    assert b"opt/betas" in hyperparameters.plugin_data.content
    # Once for all reports.
    assert capfd.readouterr().err.count("leaves out 'note'") == 1


def _mlflow_run(run: Run) -> tuple[Any, Any]:
    mlflow = pytest.importorskip("mlflow")
    client = mlflow.MlflowClient(file_store(run.path))
    found = [r for e in client.search_experiments() for r in client.search_runs([e.experiment_id])]
    assert len(found) == 1
    return client, found[0]


def test_mlflow_has_one_run_over_all_jobs_and_each_step_once(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    logger = MLflowLoggerCallback(experiment_name="an experiment", tags={"team": "x"})
    run = Run(tmp_path / "a run%d", logger)
    run.fail_and_resume()
    client, found = _mlflow_run(run)
    history = client.get_metric_history(found.info.run_id, "loss")
    # The first values of repeated steps stay: nothing can be taken out of a run of MLflow.
    assert [(m.step, m.value) for m in history] == [
        (1, 1.0),
        (2, 2.0),
        (3, 3.0),
        (4, 4.0),
        (5, 50.0),
    ]
    assert found.info.status == "FINISHED"
    assert found.info.run_name == "run"
    assert found.data.params == {"lr": "0.1", "opt/name": "sgd", "opt/betas": "[0.9, 0.99]"}
    assert found.data.tags["team"] == "x"
    assert found.data.metrics["val/acc"] == 0.5


def test_mlflow_takes_odd_names_and_values_and_the_checkpoints_that_were_asked_for(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("mlflow")
    run = Run(tmp_path / "run", MLflowLoggerCallback(save_artifact=True))
    run.begin_attempt(0)
    (run.path / "checkpoints" / "000001").mkdir(parents=True)
    (run.path / "checkpoints" / "000001" / "weights").write_text("1")
    (run.path / "artifacts").mkdir()
    (run.path / "artifacts" / "plot.txt").write_text("2")
    odd = {"acc %": 1, "acc #": 2, "../up": 3, "nan": math.nan, "inf": -math.inf, "text": "x"}
    run.make_report(odd)
    run.finish(RunState.STOPPED)
    client, found = _mlflow_run(run)
    assert found.data.metrics.keys() == {"acc _", "up", "nan", "inf"}
    assert found.data.metrics["acc _"] == 1.0
    assert math.isnan(found.data.metrics["nan"])
    assert found.data.metrics["inf"] == -math.inf
    assert found.info.status == "KILLED"
    listed = [
        client.list_artifacts(found.info.run_id, p) for p in ("artifacts", "checkpoints/000001")
    ]
    assert [[f.path for f in files] for files in listed] == [
        ["artifacts/plot.txt"],
        ["checkpoints/000001/weights"],
    ]
    said = capfd.readouterr().err
    assert "leaves out 'acc #': MLflow's name for it is taken" in said
    assert "leaves out 'text': MLflow takes numbers" in said


def test_reports_that_a_killed_executor_did_not_send_are_sent_by_the_next(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    run = Run(tmp_path / "run", MLflowLoggerCallback())
    run.begin_attempt(0)
    run.make_report({"loss": 1.0})
    run.write_line({"loss": 2.0})
    run.write_line({"loss": 3.0})
    run.begin_job()
    run.begin_attempt(3)
    run.make_report({"loss": 4.0})
    client, found = _mlflow_run(run)
    history = client.get_metric_history(found.info.run_id, "loss")
    assert [(m.step, m.value) for m in history] == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)]
    assert found.info.status == "RUNNING"


def test_a_copy_of_a_run_directory_and_a_run_without_a_report_have_records_of_their_own(
    tmp_path: Path,
) -> None:
    pytest.importorskip("mlflow")
    run = Run(tmp_path / "run", MLflowLoggerCallback())
    run.begin_attempt(0)
    run.finish(RunState.FAILED)
    client, found = _mlflow_run(run)
    assert (found.info.status, found.data.metrics) == ("FAILED", {})
    (run.path / "plan.json").write_text(json.dumps({"run_id": "another"}))
    run.begin_job()
    run.begin_attempt(0)
    run.make_report({"loss": 1.0})
    assert len(client.search_runs(["0"])) == 2


def _wandb_parts(run: Run) -> list[list[Any]]:
    """Return W&B's own messages in its files, whose frame is that of LevelDB's log."""
    from wandb.proto.wandb_internal_pb2 import Record

    parts = []
    for path in sorted(run.path.glob("wandb/offline-run-*/run-*.wandb")):
        content, at, data, records = path.read_bytes(), 7, b"", []
        while at + 7 <= len(content):
            left = 2**15 - at % 2**15
            if left < 7:
                at += left
                continue
            length, kind = struct.unpack_from("<HB", content, at + 4)
            data += content[at + 7 : at + 7 + length]
            at += 7 + length
            # 1: whole; 2, 3 and 4: first, middle and last part.
            if kind in (1, 4):
                record = Record()
                record.ParseFromString(data)
                records.append(record)
                data = b""
        parts.append(records)
    return parts


def _history(records: list[Any]) -> list[dict[str, Any]]:
    rows = []
    for record in records:
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            rows.append({"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in items})
    return rows


def test_wandb_has_one_run_over_all_jobs_and_each_step_once(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    run = Run(tmp_path / "run", WandbLoggerCallback(project="p", excludes=["val/acc"]))
    run.fail_and_resume()
    deadline = time.monotonic() + 60
    # wandb's own process closes a file after finish() has returned.
    while sum(r.HasField("exit") for part in _wandb_parts(run) for r in part) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    first, second = _wandb_parts(run)
    runs = [r.run for records in (first, second) for r in records if r.HasField("run")]
    assert {(r.run_id, r.project, r.display_name) for r in runs} == {
        ("0123456789abcdef", "p", "run")
    }
    config = {update.key: json.loads(update.value_json) for update in runs[0].config.update}
    assert config["lr"] == 0.1
    rows = _history(first) + _history(second)
    assert [(row["_step"], row["loss"]) for row in rows] == [
        (1, 1.0),
        (2, 2.0),
        (3, 3.0),
        (4, 4.0),
        (5, 50.0),
    ]
    assert not any("val/acc" in row for row in rows)
    exits = [r.exit.exit_code for part in (first, second) for r in part if r.HasField("exit")]
    assert exits == [1, 0]


def _comet_messages(run: Run) -> list[list[dict[str, Any]]]:
    parts = []
    for path in sorted(run.path.glob("comet/*.zip"), key=lambda path: path.stat().st_mtime_ns):
        with zipfile.ZipFile(path) as archive:
            lines = archive.read("messages.json").decode().splitlines()
            about = json.loads(archive.read("experiment.json"))
        parts.append([about, *(json.loads(line)["payload"] for line in lines)])
    return parts


# comet_ml leaves a socket open.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_comet_has_one_experiment_over_all_jobs_and_what_a_killed_one_lost(
    tmp_path: Path,
) -> None:
    pytest.importorskip("comet_ml")
    run = Run(tmp_path / "run", CometLoggerCallback(tags=["t"], project_name="p"))
    # Nothing of this job is left: an archive appears at its end.
    run.begin_attempt(0)
    run.write_line({"loss": 0.5})
    run.begin_job()
    run.begin_attempt(1)
    run.make_report({"loss": 2.0, "note": "text"})
    run.finish(RunState.FAILED)
    run.begin_job()
    run.begin_attempt(1)
    run.make_report({"loss": 22.0})
    run.make_report({"loss": math.nan})
    run.finish(RunState.FINISHED)
    first, second = _comet_messages(run)
    assert first[0]["offline_id"] == second[0]["offline_id"] == "0123456789abcdef" + "x" * 16

    def losses(part: list[dict[str, Any]]) -> list[tuple[int, str]]:
        metrics = [m["metric"] for m in part if m.get("metric")]
        return [(m["step"], str(m["metricValue"])) for m in metrics if m["metricName"] == "loss"]

    assert losses(first) == [(1, "0.5"), (2, "2.0")]
    assert [step for step, _ in losses(second)] == [3]
    assert [m["value"] for m in second if m.get("key") == "state"] == ["finished"]
    gc.collect()


def test_a_missing_library_is_an_error_before_anything_is_submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hpctrain import DataParallelTrainer, RunConfig, ScalingConfig

    monkeypatch.setattr(MLflowLoggerCallback, "package", "no_such_library")
    trainer = DataParallelTrainer(
        print,
        scaling_config=ScalingConfig(num_workers=0),
        run_config=RunConfig(name="run", storage_path=tmp_path, callbacks=[MLflowLoggerCallback()]),
    )
    expected = r"MLflowLoggerCallback needs no_such_library.*pip install 'hpctrain\[mlflow\]'"
    with pytest.raises(ConfigError, match=expected):
        trainer.fit()
    assert not (tmp_path / "run").exists()


def test_importing_the_loggers_imports_no_library() -> None:
    script = (
        "import sys; from hpctrain.callbacks import *; "
        "assert not {'mlflow', 'wandb', 'comet_ml', 'tensorboardX'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
