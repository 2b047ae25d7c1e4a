"""Trials whose executor is killed: another one goes on, within the budgets of the trial."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import hpctrain
from hpctrain import Checkpoint, FailureConfig, Result, RunConfig, tune
from hpctrain.execute.supervisor import MAX_RESTARTS_WITHOUT_ATTEMPT
from hpctrain.launch import cancel
from hpctrain.launch.cancel import end_process
from hpctrain.rundir.attempts import describe_event
from hpctrain.rundir.ledger import append_event, read_events
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import read_status
from hpctrain.tune.local_runner import LocalRunner
from hpctrain.tune.runner import End
from hpctrain.tune.trial import Trial
from tests.tune.played import running


@pytest.fixture(autouse=True)
def local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCTRAIN_LAUNCHER", "local")


def make_runner(tmp_path: Path) -> tuple[LocalRunner, Trial, RunPaths]:
    # The folder of a sweep, as `hpctrain cancel` sees it.
    (tmp_path / "tune.jsonl").touch()
    runner = LocalRunner(lambda trial_id, config: None, lambda name: tmp_path / name)  # type: ignore[arg-type,return-value]
    return runner, Trial(trial_id="trial_00000", config={}), RunPaths(tmp_path / "trial_00000")


def end_of(runner: LocalRunner, trial: Trial, paths: RunPaths) -> End:
    running(paths)
    # As a start does.
    runner._watch(trial).begin()
    end = runner.look(trial).end
    assert end is not None
    return end


def test_one_that_dies_before_its_first_attempt_is_replaced_some_times(tmp_path: Path) -> None:
    runner, trial, paths = make_runner(tmp_path)
    ends = [end_of(runner, trial, paths) for _ in range(MAX_RESTARTS_WITHOUT_ATTEMPT + 1)]
    assert [end.is_orphaned for end in ends] == [*MAX_RESTARTS_WITHOUT_ATTEMPT * [True], False]
    assert ends[-1].failed
    assert "its executor was killed: see " in ends[-1].reason
    status = read_status(paths)
    assert status is not None
    assert status.state is RunState.STOPPED, "nobody waits for a run that nobody runs"


def test_attempts_begin_the_count_again(tmp_path: Path) -> None:
    runner, trial, paths = make_runner(tmp_path)
    for attempt in range(1, 10):
        paths.root.mkdir(exist_ok=True)
        append_event(paths, "attempt-started", attempt=attempt)
        assert end_of(runner, trial, paths).is_orphaned


def test_one_that_was_asked_to_stop_is_not_replaced(tmp_path: Path) -> None:
    runner, trial, paths = make_runner(tmp_path)
    paths.root.mkdir()
    paths.stop_request.touch()
    end = end_of(runner, trial, paths)
    assert (end.failed, end.was_stopped, end.is_orphaned) == (False, True, False)


def test_cancel_now_asks_a_trial_to_stop_before_it_ends_its_executor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tuner looks more often than the command does."""
    _, _, paths = make_runner(tmp_path)
    running(paths)
    status = read_status(paths)
    assert status is not None
    asked = []
    monkeypatch.setattr(
        cancel, "record_end", lambda *_: asked.append(paths.stop_request.exists()) or ""
    )
    end_process(paths, status)
    assert asked == [True]
    alone = RunPaths(tmp_path / "elsewhere" / "run")
    running(alone)
    end_process(alone, status)
    assert not alone.stop_request.exists()


def test_a_killed_executor_costs_no_trial_as_long_as_the_budget_allows_another(
    tmp_path: Path,
) -> None:
    def train(config: dict[str, Any]) -> None:
        saved = hpctrain.get_checkpoint()
        for step in range(0 if saved is None else saved.to_dict()["step"] + 1, 4):
            hpctrain.report({"step": step}, Checkpoint.from_dict({"step": step}))
        context = hpctrain.get_context()
        if context.world.attempt == 1 and config["x"]:
            run = tmp_path / config["name"] / context.get_trial_name()
            os.kill(json.loads((run / "status.json").read_text())["owner_pid"], signal.SIGKILL)
            time.sleep(60)

    def sweep(name: str, limit: int) -> tune.ResultGrid:
        return tune.Tuner(
            train,
            param_space={"x": tune.grid_search([0, 1]), "name": name},
            run_config=RunConfig(
                storage_path=tmp_path,
                name=name,
                verbose=0,
                failure_config=FailureConfig(controller_failure_limit=limit),
            ),
        ).fit()

    grid = sweep("one", 1)
    assert grid.num_errors == 0, grid.errors
    killed = Result.from_path(tmp_path / "one" / "trial_00001")
    assert len(killed.attempts) == 2
    assert [metrics["step"] for metrics in killed.metrics_history] == [0, 1, 2, 3]
    events = read_events(RunPaths(Path(killed.path)))
    begun = [event for event in events if event["event"] == "fit"]
    assert [event["continues"] for event in begun] == [False, True]
    assert [describe_event(event) for event in begun] == [
        "fit() was called",
        "the executor was started again: its executor was killed",
    ]
    kinds = [event["kind"] for event in events if event["event"] == "attempt-ended"]
    assert kinds == ["start", None]
    (restart,) = [event for event in events if event["event"] == "restart"]
    assert (restart["number"], restart["budget"]) == (1, 1)

    grid = sweep("none", 0)
    (error,) = grid.errors
    assert grid.num_errors == 1
    assert (
        "died, and the run is not begun again: start failure 1 of controller_failure_limit=0"
        in (str(error))
    )


def test_a_trial_that_fails_while_it_is_to_stop_is_no_error(tmp_path: Path) -> None:
    def train(config: dict[str, Any]) -> None:
        context = hpctrain.get_context()
        run = tmp_path / "sweep" / context.get_trial_name()
        if config["x"]:
            raise ValueError("the first one")
        deadline = time.monotonic() + 60
        while not RunPaths(run).stop_request.exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        raise ValueError("an effect of that")

    grid = tune.Tuner(
        train,
        param_space={"x": tune.grid_search([0, 1])},
        run_config=RunConfig(
            storage_path=tmp_path,
            name="sweep",
            verbose=0,
            failure_config=FailureConfig(fail_fast=True),
        ),
    ).fit()
    assert [result.state for result in grid] == ["failed", "failed"]
    assert grid.num_errors == len(grid.errors) == 1
    assert "the first one" in str(grid.errors[0])
    assert grid[0].error is None
