"""Loggers with their own libraries: what they wrote is read back as each library reads it."""

from __future__ import annotations

import csv
import gc
import json
import math
import multiprocessing
import os
import pickle
import signal
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hpctrain import Checkpoint, ConfigError, Result
from hpctrain.callback import RunContext, UserCallback, begin_submission
from hpctrain.callbacks import (
    CometLoggerCallback,
    CSVLoggerCallback,
    JsonLoggerCallback,
    LoggerCallback,
    MLflowLoggerCallback,
    TBXLoggerCallback,
    WandbLoggerCallback,
)
from hpctrain.callbacks.mlflow_store import file_store
from hpctrain.callbacks.wandb_file import last_step, records_of, wait_for_step
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus
from hpctrain.worker.metrics import encode_line, encode_metrics
from tests.callbacks.records import comet_messages, wandb_history, wandb_parts
from tests.waiting import wait_until

PARAMETERS = {"lr": 0.1, "opt": {"name": "sgd", "betas": [0.9, 0.99]}}


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_MODE", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    # What a logger exports is taken back after the test.
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")


class Run:
    """A run as the executor and rank 0 leave it: each job has an executor of its own."""

    def __init__(
        self, path: Path, logger: LoggerCallback, parameters: Mapping[str, Any] = PARAMETERS
    ) -> None:
        self.path = path
        path.mkdir(exist_ok=True)
        (path / "plan.json").write_text(json.dumps({"run_id": "0123456789abcdef"}))
        logger.on_submit(parameters)
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


def test_wandb_has_one_run_over_all_jobs_and_each_step_once(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    path = tmp_path / "run"
    run = Run(path, WandbLoggerCallback(project="p", excludes=["val/acc"]))
    run.fail_and_resume()
    # wandb's own process closes a file after finish() has returned.
    wait_until(lambda: sum(r.HasField("exit") for part in wandb_parts(path) for r in part) == 2)
    first, second = wandb_parts(path)
    runs = [r.run for records in (first, second) for r in records if r.HasField("run")]
    assert {(r.run_id, r.project, r.display_name) for r in runs} == {
        ("0123456789abcdef", "p", "run")
    }
    config = {update.key: json.loads(update.value_json) for update in runs[0].config.update}
    assert config["lr"] == 0.1
    rows = wandb_history(first) + wandb_history(second)
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


def _log_and_be_killed(path: Path) -> None:
    """Make reports 1 to 8, of which wandb has written the first five, or some of them."""
    import wandb

    settings = wandb.Settings(silent=True, console="off", x_transaction_log_flush_interval=0.2)
    run = Run(path, WandbLoggerCallback(settings=settings))
    run.begin_attempt(0)
    for number in range(1, 9):
        run.make_report({"loss": float(number)})
        if number == 5:
            wait_until(lambda: any(wandb_history(part) for part in wandb_parts(path)))
    os.kill(os.getpid(), signal.SIGKILL)


def test_wandb_is_sent_again_what_a_killed_process_had_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    # wandb's own process is that of the process that is killed.
    monkeypatch.delenv("WANDB_SERVICE", raising=False)
    # The process imports this module.
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    path = tmp_path / "run"
    killed = multiprocessing.get_context("spawn").Process(target=_log_and_be_killed, args=(path,))
    killed.start()
    killed.join(120)
    assert killed.exitcode == -signal.SIGKILL
    run = Run(path, WandbLoggerCallback())
    run.attempt = 1
    run.begin_attempt(4)
    for number in range(5, 11):
        run.make_report({"loss": 10.0 * number})
    run.finish(RunState.FINISHED)
    # At once: a job that ends ends wandb's own process too.
    first, second = (wandb_history(part) for part in wandb_parts(path))
    assert 1 <= len(first) <= 5
    steps = [row["_step"] for row in [*first, *second]]
    assert steps == list(range(1, 11))
    # What the first process reported, of what the next one does not report again.
    assert [row["loss"] for row in [*first, *second]][:4] == [1, 2, 3, 4]
    assert second[-1]["loss"] == 100
    assert last_step(path / "wandb", "0123456789abcdef") == 10


def test_a_part_that_began_in_the_same_second_as_another_is_found(tmp_path: Path) -> None:
    """So wandb names the directory of a process that begins so soon after another has died."""
    pb = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    for name, step in (("", 4), ("-1", 10)):
        part = tmp_path / f"offline-run-20261128_194204-an-id{name}"
        part.mkdir()
        record = pb.Record()
        record.history.item.add(key="_step", value_json=str(step))
        content = record.SerializeToString()
        chunk = struct.pack("<IHB", 0, len(content), 1) + content
        (part / "run-an-id.wandb").write_bytes(b":W&B..." + chunk)
    assert last_step(tmp_path, "an-id") == 10


def test_a_step_of_wandb_that_is_never_written_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    assert not wait_for_step(tmp_path, "an id", 1, timeout_s=0.05)
    assert wait_for_step(tmp_path, "an id", 0, timeout_s=0.05)


def test_what_is_cut_off_at_the_end_of_a_file_of_wandb_is_not_read() -> None:
    def chunk(kind: int, content: bytes) -> bytes:
        return struct.pack("<IHB", 0, len(content), kind) + content

    # The second record leaves three bytes of the block, which are too few for a chunk.
    long = b"y" * (2**15 - 7 - 10 - 7 - 3)
    whole = b":W&B..." + chunk(1, b"one") + chunk(2, long) + b"\0" * 3 + chunk(4, b"end")
    assert list(records_of(whole)) == [b"one", long + b"end"]
    assert list(records_of(whole[:-1])) == [b"one"]
    assert list(records_of(whole + b"\0" * 20)) == [b"one", long + b"end"]
    assert list(records_of(b"")) == []


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
    first, second = comet_messages(run.path)
    assert first[0]["offline_id"] == second[0]["offline_id"] == "0123456789abcdef" + "x" * 16

    def losses(part: list[dict[str, Any]]) -> list[tuple[int, str]]:
        metrics = [m["metric"] for m in part if m.get("metric")]
        return [(m["step"], str(m["metricValue"])) for m in metrics if m["metricName"] == "loss"]

    assert losses(first) == [(1, "0.5"), (2, "2.0")]
    assert [step for step, _ in losses(second)] == [3]
    assert [m["value"] for m in second if m.get("key") == "state"] == ["finished"]
    gc.collect()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_comet_without_tags_says_nothing_of_errors(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("comet_ml")
    run = Run(tmp_path / "run", CometLoggerCallback())
    run.begin_attempt(0)
    run.make_report({"loss": 1.0})
    run.finish(RunState.FINISHED)
    assert "COMET ERROR" not in capfd.readouterr().err
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


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (CSVLoggerCallback, "both write progress.csv"),
        (JsonLoggerCallback, "both write result.json"),
        (TBXLoggerCallback, "both write the event files"),
        (MLflowLoggerCallback, "both write a run of MLflow with tracking_uri=None"),
        (WandbLoggerCallback, "both write a run of W&B with id=None"),
        (CometLoggerCallback, "both write an experiment of Comet with online=False"),
    ],
)
def test_two_loggers_of_one_record_are_refused_before_anything_is_submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Any, match: str
) -> None:
    from hpctrain import DataParallelTrainer, RunConfig, ScalingConfig

    monkeypatch.setattr(make, "package", "")
    trainer = DataParallelTrainer(
        print,
        scaling_config=ScalingConfig(num_workers=0),
        run_config=RunConfig(name="run", storage_path=tmp_path, callbacks=[make(), make()]),
    )
    with pytest.raises(ConfigError, match=match):
        trainer.fit()
    assert not (tmp_path / "run").exists()


def test_loggers_of_one_kind_with_records_of_their_own_are_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Stored(UserCallback):
        pass

    loggers = [
        MLflowLoggerCallback("file:///a"),
        MLflowLoggerCallback("file:///b"),
        WandbLoggerCallback(project="p"),
        WandbLoggerCallback(project="p", id="another"),
        CometLoggerCallback(),
        CometLoggerCallback(experiment_key="x" * 32),
        CometLoggerCallback(online=True),
    ]
    for kind in {type(logger) for logger in loggers}:
        monkeypatch.setattr(kind, "package", "")
    begin_submission([*loggers, Stored(), Stored()], {})


def test_importing_the_loggers_imports_no_library() -> None:
    script = (
        "import sys; from hpctrain.callbacks import *; "
        "assert not {'mlflow', 'wandb', 'comet_ml', 'tensorboardX'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_reports_that_a_killed_executor_did_not_log_are_in_the_files_of_the_next(
    tmp_path: Path,
) -> None:
    for logger in (CSVLoggerCallback(), JsonLoggerCallback()):
        run = Run(tmp_path / type(logger).__name__, logger)
        run.begin_attempt(0)
        run.make_report({"loss": 1.0})
        run.write_line({"loss": 2.0, "val": {"acc": 0.5}})
        run.begin_job()
        run.begin_attempt(2)
        # Nor is this one logged.
        run.write_line({"loss": 3.0})
        run.begin_job()
        run.begin_attempt(3)
        run.make_report({"loss": 4.0})
        run.finish(RunState.FINISHED)
    rows = _rows(tmp_path / "CSVLoggerCallback" / "progress.csv")
    assert [(r["training_iteration"], r["loss"], r["val/acc"]) for r in rows] == [
        ("1", "1.0", ""),
        ("2", "2.0", "0.5"),
        ("3", "3.0", ""),
        ("4", "4.0", ""),
    ]
    content = (tmp_path / "JsonLoggerCallback" / "result.json").read_text()
    lines = [json.loads(line) for line in content.splitlines()]
    assert [line["training_iteration"] for line in lines] == [1, 2, 3, 4]
    assert lines[1]["val"] == {"acc": 0.5}


def test_reports_that_a_killed_executor_did_not_log_are_in_tensorboard_once(
    tmp_path: Path,
) -> None:
    pytest.importorskip("tensorboardX")
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run = Run(tmp_path / "run", TBXLoggerCallback())
    run.begin_attempt(0)
    run.make_report({"loss": 1.0})
    run.write_line({"loss": 2.0})
    run.logger.close(run.context(), "failed")
    run.begin_job()
    run.begin_attempt(2)
    run.make_report({"loss": 3.0})
    run.make_report({"loss": 4.0})
    run.finish(RunState.FAILED)
    run.begin_job()
    run.begin_attempt(3)
    run.make_report({"loss": 40.0})
    run.finish(RunState.FINISHED)
    events = accumulator.EventAccumulator(str(run.path))
    events.Reload()
    loss = [(scalar.step, scalar.value) for scalar in events.Scalars("loss")]
    assert loss == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 40.0)]


def test_long_cells_and_carriage_returns_are_read_back_from_progress_csv(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", CSVLoggerCallback())
    run.begin_attempt(0)
    note = "x" * 200_000
    run.make_report({"note": note, "odd": "one\rtwo"})
    run.make_report({"loss": 1.0})
    run.begin_job()
    run.begin_attempt(2)
    run.make_report({"loss": 2.0})
    run.finish(RunState.FINISHED)
    limit = csv.field_size_limit(1_000_000)
    try:
        rows = _rows(run.path / "progress.csv")
    finally:
        csv.field_size_limit(limit)
    assert [row["note"] for row in rows] == [note, "", ""]
    assert [row["odd"] for row in rows] == ["one\rtwo", "", ""]
    assert [row["loss"] for row in rows] == ["", "1.0", "2.0"]


@pytest.mark.parametrize("is_path", [False, True])
def test_mlflow_leaves_out_a_name_that_would_be_a_directory_of_another_one(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], is_path: bool
) -> None:
    pytest.importorskip("mlflow")
    logger = MLflowLoggerCallback(str(tmp_path / "run" / "mlruns") if is_path else None)
    run = Run(tmp_path / "run", logger)
    run.begin_attempt(0)
    for step in range(1, 4):
        run.make_report({"loss": 1.0 / step, "loss/reg": 0.1, "acc": step})
    run.begin_job()
    run.begin_attempt(3)
    run.make_report({"val": {"acc": 1.0}, "loss/reg": 0.1, "acc/top5": 1.0, "acc": 4})
    run.make_report({"val": 2.0, "acc": 5})
    client, found = _mlflow_run(run)
    assert found.data.metrics.keys() == {"loss", "acc", "val/acc"}
    history = client.get_metric_history(found.info.run_id, "acc")
    assert [(m.step, m.value) for m in history] == [(n, float(n)) for n in range(1, 6)]
    assert "leaves out 'loss/reg': a file store of MLflow" in capfd.readouterr().err


def test_a_report_that_mlflow_refuses_for_good_is_not_sent_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    run = Run(tmp_path / "run", MLflowLoggerCallback())
    run.begin_attempt(0)
    log_batch = mlflow.MlflowClient.log_batch

    def refuse(self: Any, run_id: str, metrics: Any = (), **others: Any) -> None:
        if any(metric.value == 2.0 for metric in metrics):
            from mlflow.exceptions import INVALID_PARAMETER_VALUE, MlflowException

            raise MlflowException("no such value", error_code=INVALID_PARAMETER_VALUE)
        log_batch(self, run_id, metrics=metrics, **others)

    monkeypatch.setattr(mlflow.MlflowClient, "log_batch", refuse)
    for step in range(1, 5):
        run.make_report({"acc": step})
    client, found = _mlflow_run(run)
    history = client.get_metric_history(found.info.run_id, "acc")
    assert [m.step for m in history] == [1, 3, 4]
    assert capfd.readouterr().err.count("MLflow refuses report 2: no such value") == 1


def test_keys_of_parameters_that_json_cannot_hold_are_text_in_params_json(tmp_path: Path) -> None:
    grid = {(1, 2): 3, 4: [{(5,): 6}], None: {7}}
    run = Run(tmp_path / "run", JsonLoggerCallback(), {"grid": grid})
    run.begin_attempt(0)
    run.make_report({"loss": 1.0})
    run.finish(RunState.FINISHED)
    written = json.loads((run.path / "params.json").read_text())
    assert written == {"grid": {"(1, 2)": 3, "4": [{"(5,)": 6}], "null": "{7}"}}
    assert json.loads((run.path / "result.json").read_text())["loss"] == 1.0


def test_integers_of_any_size_are_hyperparameters_in_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX")
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    metadata = pytest.importorskip("tensorboard.plugins.hparams.metadata")
    seeds = {"small": 3, "entropy": 2**127, "beyond": -(10**400), "on": True}
    run = Run(tmp_path / "run", TBXLoggerCallback(), seeds)
    run.begin_attempt(0)
    run.make_report({"loss": 1.0})
    run.finish(RunState.FINISHED)
    events = accumulator.EventAccumulator(str(run.path))
    events.Reload()
    assert [scalar.value for scalar in events.Scalars("loss")] == [1.0]
    content = events.PluginTagToContent("hparams")[metadata.SESSION_START_INFO_TAG]
    shown = metadata.parse_session_start_info_plugin_data(content).hparams
    assert shown["small"].number_value == 3
    assert shown["entropy"].number_value == 2.0**127
    assert shown["beyond"].string_value == repr(-(10**400))
    assert shown["on"].bool_value


_NO_TEXT = os.fsdecode(b"caf\xe9")
_AS_TEXT = r"caf\udce9"


def test_bytes_of_file_names_that_are_no_text_are_in_the_files_also_when_reopened(
    tmp_path: Path,
) -> None:
    for logger in (CSVLoggerCallback(), JsonLoggerCallback()):
        run = Run(tmp_path / type(logger).__name__, logger, {"file": _NO_TEXT})
        run.begin_attempt(0)
        run.make_report({"file": _NO_TEXT, _NO_TEXT: 1})
        run.write_line({"file": _NO_TEXT, _NO_TEXT: 2})
        run.begin_job()
        run.begin_attempt(2)
        run.make_report({"file": "x", _NO_TEXT: 3})
        run.finish(RunState.FINISHED)
    rows = _rows(tmp_path / "CSVLoggerCallback" / "progress.csv")
    assert [row["file"] for row in rows] == [_AS_TEXT, _AS_TEXT, "x"]
    assert [row[_AS_TEXT] for row in rows] == ["1", "2", "3"]
    assert len(rows[0]) == 4
    content = (tmp_path / "JsonLoggerCallback" / "result.json").read_text()
    lines = [json.loads(line) for line in content.splitlines()]
    assert [(line["file"], line[_NO_TEXT]) for line in lines] == [
        (_NO_TEXT, 1),
        (_NO_TEXT, 2),
        ("x", 3),
    ]


def test_parameters_with_bytes_that_are_no_text_do_not_keep_trackers_from_logging(
    tmp_path: Path,
) -> None:
    pytest.importorskip("tensorboardX")
    pytest.importorskip("mlflow")
    runs = [
        Run(tmp_path / type(logger).__name__, logger, {"file": _NO_TEXT, _NO_TEXT: 1})
        for logger in (TBXLoggerCallback(), MLflowLoggerCallback())
    ]
    for run in runs:
        run.begin_attempt(0)
        run.make_report({"loss": 1.0})
        run.finish(RunState.FINISHED)
    _, found = _mlflow_run(runs[-1])
    assert found.data.params["file"] == _AS_TEXT
    assert found.data.metrics == {"loss": 1.0}


@pytest.mark.parametrize("form", ["path", "uri", "variable"])
def test_mlflow_may_use_each_file_store_that_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE")
    store = str(tmp_path / "mlruns") if form == "path" else (tmp_path / "mlruns").as_uri()
    if form == "variable":
        monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    run = Run(tmp_path / "run", MLflowLoggerCallback(None if form == "variable" else store))
    run.begin_attempt(0)
    run.make_report({"loss": 1.0})
    run.finish(RunState.FINISHED)
    (found,) = mlflow.MlflowClient(store).search_runs(["0"])
    assert found.data.metrics == {"loss": 1.0}
