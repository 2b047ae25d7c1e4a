"""``hpctrain sync``: what loggers wrote without a network reaches their servers, once."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hpctrain import Result
from hpctrain.callback import RunContext
from hpctrain.callbacks import MLflowLoggerCallback, sync
from hpctrain.callbacks.mlflow_store import file_store
from hpctrain.cli.main import app
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus, write_status


@pytest.fixture(autouse=True)
def _without_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")


def _make_run(root: Path) -> Path:
    root.mkdir(parents=True)
    (root / "plan.json").write_text(json.dumps({"run_id": f"id-of-{root.name}"}))
    status = RunStatus(name="run", state=RunState.FINISHED, launcher="local")
    write_status(RunPaths(root), status.placed_in(root))
    return root


def _sync(*arguments: str) -> tuple[int, list[str]]:
    done = CliRunner().invoke(app, ["sync", *arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout.splitlines()


def test_a_run_of_mlflow_is_copied_to_a_server_and_then_only_what_is_new(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    root = _make_run(tmp_path / "runs" / "a run%d")
    (root / "artifacts").mkdir()
    (root / "artifacts" / "plot.txt").write_text("plot")
    logger = MLflowLoggerCallback(experiment_name="an experiment", save_artifact=True)
    logger.on_submit({"lr": 0.1})

    def context(report: int) -> RunContext:
        return RunContext(name="run", path=root, attempt=1, world_size=1, report=report)

    def finish(report: int) -> None:
        status = RunStatus(name="run", state=RunState.FINISHED, launcher="local")
        logger.on_finish(context(report), Result(path=root, status=status, error=None))

    logger.after_report(context(1), [{"loss": 1.0, "val": {"acc": math.nan}}], None)
    finish(1)
    server = (tmp_path / "server").as_uri()
    arguments = (str(root), "--mlflow-uri", server)
    sent = "a run%d  mlflow: sent 1 run, 1 parameter, 2 values, 1 artifact"
    assert _sync(*arguments) == (0, [sent])
    assert _sync(*arguments) == (0, ["a run%d  mlflow: there already"])
    logger.after_report(context(2), [{"loss": 2.0}], None)
    finish(2)
    assert _sync(*arguments) == (0, ["a run%d  mlflow: sent 1 value"])

    client = mlflow.MlflowClient(server)
    experiment = client.get_experiment_by_name("an experiment")
    (run,) = client.search_runs([experiment.experiment_id])
    history = client.get_metric_history(run.info.run_id, "loss")
    assert [(m.step, m.value) for m in history] == [(1, 1.0), (2, 2.0)]
    assert run.data.params == {"lr": "0.1"}
    assert run.info.status == "FINISHED"
    (artifact,) = client.list_artifacts(run.info.run_id, "artifacts")
    assert artifact.path == "artifacts/plot.txt"


def test_all_runs_of_a_directory_are_sent_and_one_that_fails_does_not_keep_the_others(
    tmp_path: Path,
) -> None:
    mlflow = pytest.importorskip("mlflow")
    for name in ("one", "two", "three"):
        _make_run(tmp_path / name)
    for name in ("one", "two"):
        client = mlflow.MlflowClient(file_store(tmp_path / name))
        client.create_run("0", run_name=name)
    (tmp_path / "one" / "mlruns" / "0" / "meta.yaml").write_text("")
    code, lines = _sync("--all", "-s", str(tmp_path), "--mlflow-uri", (tmp_path / "s").as_uri())
    by_run = {line.split()[0]: line for line in lines}
    assert by_run["three"] == "three  nothing to send"
    assert by_run["two"] == "two  mlflow: sent 1 run"
    assert "one  mlflow: not sent: there is no run in" in by_run["one"]
    assert (code, len(by_run)) == (4, 3)


def test_without_a_server_of_mlflow_the_error_names_the_variable(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    root = _make_run(tmp_path / "run")
    (root / "mlruns").mkdir()
    code, (line,) = _sync(str(root))
    assert code == 4
    assert "Set MLFLOW_TRACKING_URI, or give --mlflow-uri" in line


def test_a_run_or_all_has_to_be_given() -> None:
    done = CliRunner().invoke(app, ["sync"])
    assert done.exit_code == 2
    assert "hpctrain sync RUN" in done.output + str(done.exception)


def test_wandb_without_a_login_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    root = _make_run(tmp_path / "run")
    part = root / "wandb" / "offline-run-20260101_000000-abc"
    part.mkdir(parents=True)
    (part / "run-abc.wandb").write_bytes(b":W&B\xe1\xbe\x00")
    code, (line,) = _sync(str(root), "--timeout", "60")
    assert code == 4
    assert line.startswith("run  wandb: not sent: 1 of 1 parts: ")
    assert "wandb login" in line


def test_a_tool_that_does_not_end_names_the_option(tmp_path: Path) -> None:
    said = sync._run(tmp_path, 0.05, "timeit", "-n1", "import time; time.sleep(60)")
    assert said.startswith("timeit was not done after 0.05 s, which --timeout sets.")


def test_parts_of_a_run_are_sent_together_and_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no server of W&B or Comet to be had: their tools are replaced."""
    calls: list[Sequence[str]] = []

    def run(cwd: Path, timeout_s: float, module: str, verb: str, *paths: str) -> str:
        calls.append((module, verb, *(Path(path).name for path in paths)))
        for path in paths if module == "wandb" else ():
            (Path(path) / "run-abc.wandb.synced").touch()
        return "" if module == "wandb" or len(calls) > 2 else "ERROR no network"

    monkeypatch.setattr(sync, "_run", run)
    monkeypatch.setattr(sync, "require_package", lambda *_: None)
    root = _make_run(tmp_path / "run")
    for number in (1, 2):
        part = root / "wandb" / f"offline-run-2026010{number}_000000-abc"
        part.mkdir(parents=True)
        (part / "run-abc.wandb").touch()
    (root / "comet").mkdir()
    (root / "comet" / "key.zip").touch()

    (running, *_) = sync.sync_run(root, is_over=False, timeout_s=1)
    assert "the run is not over" in running.text
    assert calls.pop()[0] == "comet_ml.scripts.comet"
    code, lines = _sync(str(root))
    assert (code, lines) == (
        4,
        ["run  wandb: sent 2 parts", "run  comet: not sent: key.zip: ERROR no network"],
    )
    assert calls[0][1:] == (
        "sync",
        "offline-run-20260101_000000-abc",
        "offline-run-20260102_000000-abc",
    )
    assert _sync(str(root)) == (0, ["run  wandb: there already", "run  comet: sent 1 part"])
    assert _sync(str(root)) == (0, ["run  wandb: there already", "run  comet: there already"])
    assert len(calls) == 3
