from __future__ import annotations

import json
import os
import pickle
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from hpctrain.checkpoint import Checkpoint
from hpctrain.config import CheckpointConfig
from hpctrain.errors import (
    ConfigError,
    LaunchError,
    RunStoppedError,
    TrainingFailedError,
    WorkerError,
)
from hpctrain.plan import spec
from hpctrain.result import Result
from hpctrain.rundir.ledger import append_event
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.staging import StagedPart, seal, staging_directory
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus, write_status
from hpctrain.rundir.store import CheckpointStore


def write_state(paths: RunPaths, state: RunState, **details: Any) -> None:
    write_status(paths, RunStatus(name="run", state=state, launcher="slurm", **details))


def commit(paths: RunPaths, number: int, **metrics: Any) -> None:
    directory = staging_directory(paths.checkpoints, attempt=1, report=number, rank=0)
    directory.mkdir(parents=True)
    (directory / "model.bin").write_bytes(b"%d" % number)
    CheckpointStore(paths.checkpoints).commit(
        attempt=1,
        report=number,
        world_size=1,
        metrics=metrics,
        parts={0: StagedPart(files=tuple(seal(directory)))},
    )


def write_reports(paths: RunPaths, *metrics: dict[str, Any]) -> None:
    with open(paths.metrics, "w") as file:
        for number, values in enumerate(metrics, start=1):
            report = {"report": number, "attempt": 1, "time": 5.0, "checkpoint": None}
            print(json.dumps({**report, "metrics": values}), file=file)


def test_a_finished_run_is_read_from_its_directory_alone(paths: RunPaths):
    write_state(paths, RunState.FINISHED, job_id="7", nodes=("n1", "n2"))
    write_reports(paths, {"loss": 0.5}, {"loss": 0.25})
    commit(paths, 1, loss=0.5)
    commit(paths, 2, loss=0.25)
    paths.return_value.write_bytes(spec.pack({"answer": 42}, what="the value"))
    result = Result.from_path(paths.root)
    assert (result.state, result.error) == ("finished", None)
    assert result.metrics == {"loss": 0.25}
    assert result.metrics_history == [{"loss": 0.5}, {"loss": 0.25}]
    assert result.checkpoint == Checkpoint(paths.checkpoints / "000002")
    assert result.return_value == {"answer": 42}
    assert (result.job_ids, result.nodes) == (["7"], ("n1", "n2"))
    assert repr(result) == (
        f"Result(state='finished', metrics={{'loss': 0.25}}, path='{paths.root}')"
    )


def test_a_run_that_has_only_begun_has_a_result_too(paths: RunPaths):
    write_state(paths, RunState.RUNNING)
    result = Result.from_path(paths.root)
    assert (result.state, result.error, result.metrics) == ("running", None, {})
    assert result.checkpoint is None
    assert result.best_checkpoints == []
    assert result.get_best_checkpoint("loss", "min") is None
    assert result.return_value is None
    assert result.attempts == []
    assert len(result.metrics_dataframe) == 0


def test_the_error_of_a_failed_rank_names_it_as_fit_did(paths: RunPaths):
    message = "rank 5 of 8 on gpu012 failed after report 14: X: y"
    write_state(paths, RunState.FAILED, error=message, error_type="WorkerError")
    error = Result.from_path(paths.root).error
    assert isinstance(error, WorkerError)
    assert (error.rank, error.hostname) == (5, "gpu012")
    assert str(error).startswith("rank 5 of 8 on gpu012 failed after report 14")
    assert "error=WorkerError" in repr(Result.from_path(paths.root))


@pytest.mark.parametrize(
    "message",
    [
        "rank 1 returned after 2 reports, but rank 0 made 3.",
        "rank 0 died while the group of 2 ranks was starting.",
        "srun is not on PATH",
    ],
)
def test_other_errors_of_a_failed_run_blame_no_rank(paths: RunPaths, message: str):
    write_state(paths, RunState.FAILED, error=message)
    error = Result.from_path(paths.root).error
    assert type(error) is TrainingFailedError
    assert str(error) == message


def test_a_launch_error_is_told_from_a_failure_of_ranks(paths: RunPaths):
    write_state(paths, RunState.FAILED, error="no mpiexec", error_type="LaunchError")
    assert type(Result.from_path(paths.root).error) is LaunchError


def test_a_stopped_run_can_be_told_from_a_failed_one(paths: RunPaths):
    write_state(paths, RunState.STOPPED, error="the run was asked to stop")
    error = Result.from_path(paths.root).error
    assert isinstance(error, RunStoppedError)
    assert str(error) == "the run was asked to stop"


def test_a_directory_may_be_given_as_a_shell_completes_it(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
):
    write_state(paths, RunState.FINISHED)
    monkeypatch.chdir(paths.root.parent)
    for given in (f"{paths.root}{os.sep}", "run/", "./run", Path("run")):
        assert Result.from_path(given).path == paths.root


def test_a_directory_that_does_not_exist_is_no_run(tmp_path: Path):
    message = rf"{tmp_path}/nowhere does not exist: it is not a run of hpctrain\. 'hpctrain list"
    with pytest.raises(ConfigError, match=message):
        Result.from_path(tmp_path / "nowhere")


def test_a_directory_or_file_that_is_no_run_is_told_as_such(tmp_path: Path):
    (tmp_path / "train.py").write_text("")
    for path in (tmp_path, tmp_path / "train.py"):
        with pytest.raises(ConfigError, match=r"has no status\.json: it is not a run of hpctrain"):
            Result.from_path(path)


def test_all_reports_become_a_data_frame(paths: RunPaths):
    pytest.importorskip("pandas")
    write_state(paths, RunState.FINISHED)
    write_reports(paths, {"loss": 0.5}, {"loss": 0.25, "accuracy": 0.9})
    frame = Result.from_path(paths.root).metrics_dataframe
    assert list(frame.columns) == [
        "report",
        "attempt",
        "time",
        "checkpoint",
        "loss",
        "accuracy",
    ]
    assert list(frame["report"]) == [1, 2]
    assert list(frame["loss"]) == [0.5, 0.25]


def test_the_best_checkpoint_is_that_of_a_metric(paths: RunPaths):
    write_state(paths, RunState.FINISHED)
    for number, loss in enumerate([0.5, 0.1, 0.3], start=1):
        commit(paths, number, loss=loss, val={"loss": -loss})
    result = Result.from_path(paths.root)
    for metric, mode, best in (("loss", "min", 2), ("loss", "max", 1), ("val/loss", "max", 2)):
        checkpoint = result.get_best_checkpoint(metric, mode)  # type: ignore[arg-type]
        assert checkpoint == Checkpoint(paths.checkpoints / f"{best:06d}")


def test_the_best_by_a_name_with_a_slash_is_found(paths: RunPaths):
    write_state(paths, RunState.FINISHED)
    for report, loss in enumerate((0.5, 0.1, 0.3), start=1):
        commit(paths, report, **{"val/loss": loss, "val": {"acc": -loss}})
    result = Result.from_path(paths.root)
    for name, mode in (("val/loss", "min"), ("val/acc", "max")):
        best = result.get_best_checkpoint(name, mode)  # type: ignore[arg-type]
        assert best is not None
        assert best.path.name == "000002"
    with pytest.raises(ConfigError, match=r"'val/los'\. .* Did you mean 'val/loss'\?"):
        result.get_best_checkpoint("val/los", "min")


def test_a_metric_that_no_checkpoint_has_is_told_with_those_that_they_have(paths: RunPaths):
    write_state(paths, RunState.FINISHED)
    commit(paths, 1, loss=0.5, accuracy=0.9)
    message = r"no checkpoint of .* has the metric 'f1'\. The metrics are accuracy, loss"
    with pytest.raises(ConfigError, match=message):
        Result.from_path(paths.root).get_best_checkpoint("f1", "max")


def test_a_mode_is_max_or_min(paths: RunPaths):
    write_state(paths, RunState.FINISHED)
    with pytest.raises(ConfigError, match="One of 'max', 'min' is needed"):
        Result.from_path(paths.root).get_best_checkpoint("loss", "best")  # type: ignore[arg-type]


def test_the_best_checkpoint_by_the_score_of_the_run_is_the_last(paths: RunPaths):
    write_state(paths, RunState.FINISHED)
    config = CheckpointConfig(checkpoint_score_attribute="loss", checkpoint_score_order="min")
    paths.plan.write_text(json.dumps({"run_config": {"checkpoint_config": asdict(config)}}))
    for number, loss in enumerate([0.5, 0.1, 0.3, 0.5], start=1):
        commit(paths, number, loss=loss)
    commit(paths, 5, accuracy=1.0)
    ranked = Result.from_path(paths.root).best_checkpoints
    assert [metrics.get("loss") for _, metrics in ranked] == [None, 0.5, 0.5, 0.3, 0.1]
    # Of equal scores the later one comes later.
    assert [c.path.name for c, _ in ranked] == ["000005", "000001", "000004", "000003", "000002"]


def test_without_a_score_the_checkpoints_come_from_the_oldest_to_the_newest(paths: RunPaths):
    write_state(paths, RunState.FINISHED)
    for number in (1, 2, 3):
        commit(paths, number, loss=-number)
    order = [metrics["loss"] for _, metrics in Result.from_path(paths.root).best_checkpoints]
    assert order == [-1, -2, -3]


def test_attempts_and_what_they_cost_are_read_from_the_ledger(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
):
    clock = iter([100.0, 130.0, 140.0, 160.0])
    monkeypatch.setattr("time.time", lambda: next(clock))
    append_event(paths, "attempt-started", attempt=1, job_id="7")
    append_event(paths, "attempt-ended", attempt=1, cause="WorkerError: rank 1", nodes=["n1"])
    append_event(paths, "attempt-started", attempt=2, job_id="8")
    append_event(paths, "attempt-ended", attempt=2, cause="finished", nodes=["n2"])
    monkeypatch.undo()
    write_state(paths, RunState.FINISHED, job_id="8", started_at=90.0, ended_at=160.0)
    result = Result.from_path(paths.root)
    first, second = result.attempts
    assert (first.job_id, first.nodes, first.cause) == ("7", ("n1",), "WorkerError: rank 1")
    assert (second.started_at, second.ended_at) == (140.0, 160.0)
    assert result.job_ids == ["7", "8"]
    assert result.timings == {"total": 70.0, "training": 50.0, "lost": 20.0}


def test_an_attempt_whose_executor_died_has_no_end(paths: RunPaths):
    write_state(paths, RunState.RUNNING)
    append_event(paths, "attempt-started", attempt=1, job_id=None)
    (attempt,) = Result.from_path(paths.root).attempts
    assert (attempt.ended_at, attempt.cause) == (None, None)


def test_a_result_can_be_sent_elsewhere(paths: RunPaths):
    write_state(paths, RunState.FINISHED)
    write_reports(paths, {"loss": 0.5})
    copy = pickle.loads(pickle.dumps(Result.from_path(paths.root)))
    assert copy.metrics == {"loss": 0.5}


def test_one_made_by_hand_says_what_it_was_given():
    checkpoints = [
        (Checkpoint(f"/bucket/run/{i}"), {"loss": loss, "step": i})
        for i, loss in enumerate((3.0, 1.0, float("nan"), 2.0))
    ]
    last = checkpoints[-1][0]
    result = Result({"loss": 2.0}, last, None, "/bucket/run", best_checkpoints=checkpoints)
    assert result.metrics == {"loss": 2.0}
    assert result.checkpoint is last
    assert result.error is None
    assert result.path == "/bucket/run"
    assert result.best_checkpoints == checkpoints
    assert result.get_best_checkpoint("loss", "min") is checkpoints[1][0]
    assert result.get_best_checkpoint("loss", "max") is checkpoints[0][0]
    with pytest.raises(ConfigError, match="no checkpoint of /bucket/run has the metric 'los'"):
        result.get_best_checkpoint("los", "min")
    assert repr(result) == (
        "Result(metrics={'loss': 2.0}, path='/bucket/run', "
        "checkpoint=Checkpoint(filesystem=local, path=/bucket/run/3))"
    )
    with pytest.raises(ConfigError, match="does not exist"), result.checkpoint.as_directory():
        pass
    assert (result.state, result.metrics_history, result.return_value) == ("finished", [], None)
    assert pickle.loads(pickle.dumps(result)).get_best_checkpoint("loss", "min") == Checkpoint(
        "/bucket/run/1"
    )


def test_one_made_by_hand_may_have_nothing_but_an_error_and_a_path():
    result = Result(metrics=None, checkpoint=None, error=ValueError("no"), path="/bucket/run")
    assert (result.state, result.metrics, result.best_checkpoints) == ("failed", {}, [])
    assert result.get_best_checkpoint("loss", "min") is None
    assert repr(result) == (
        "Result(metrics={}, path='/bucket/run', checkpoint=None, error=ValueError)"
    )
    with pytest.raises(ConfigError, match="needs path="):
        Result(metrics={})
    status = RunStatus(name="run", state=RunState.FINISHED, launcher="local")
    with pytest.raises(ConfigError, match="reads the rest from the run directory"):
        Result(metrics={}, path="/bucket/run", status=status)
