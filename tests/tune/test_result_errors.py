"""What the results of a sweep say of trials that failed without an error of their run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import hpctrain
from hpctrain import RunConfig, tune
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus, write_status
from hpctrain.tune.failures import explain_no_progress
from hpctrain.tune.ledger import SweepPaths
from hpctrain.tune.result_grid import ResultGrid, make_grid
from hpctrain.tune.trial import Trial, TrialState


def loops_without_the_metric(config: Mapping[str, Any]) -> None:
    while config["loops"]:
        hpctrain.report({"other": 1})
    hpctrain.report({"loss": 0})


def test_a_trial_that_is_stopped_for_its_metric_has_that_as_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPCTRAIN_LAUNCHER", "local")
    results = tune.Tuner(
        loops_without_the_metric,
        param_space={"loops": tune.grid_search([False, True])},
        tune_config=tune.TuneConfig(metric="loss", mode="min", max_concurrent_trials=1),
        run_config=RunConfig(storage_path=str(tmp_path), name="sweep", verbose=0),
    ).fit()
    (error,) = results.errors
    assert str(error).startswith("trial_00001 reported no 'loss', which TuneConfig(metric=...)")


def make_failed(root: Path, trial: Trial, state: RunState, said: str) -> ResultGrid:
    """Return the results of a trial that has failed, and of its run."""
    paths = RunPaths(root / trial.trial_id)
    paths.root.mkdir()
    status = RunStatus(name=trial.trial_id, state=state, launcher="local", error=said)
    write_status(paths, status.with_changes(error_type="NodeLostError"))
    trial.state = TrialState.ERROR
    return make_grid(SweepPaths(root=root), {trial.trial_id: trial}, metric=None, mode=None)


@pytest.mark.parametrize("state", [RunState.STOPPED, RunState.FAILED])
def test_a_trial_that_made_no_progress_in_many_jobs_has_that_as_its_error(
    tmp_path: Path, state: RunState
) -> None:
    trial = Trial(trial_id="trial_00000", config={}, without_progress=5)
    trial.reason = explain_no_progress(trial)
    results = make_failed(tmp_path, trial, state, "job 7, in which it ran, has ended")
    assert [str(error) for error in results.errors] == [trial.reason]
    assert str(results[0].error) == trial.reason


def test_a_trial_whose_run_has_failed_keeps_the_error_of_its_run(tmp_path: Path) -> None:
    trial = Trial(trial_id="trial_00000", config={}, reason="node b is lost")
    results = make_failed(tmp_path, trial, RunState.FAILED, "node b is lost: silent")
    assert [str(error) for error in results.errors] == ["node b is lost: silent"]
