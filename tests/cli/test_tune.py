"""``hpctrain tune``: looks at sweeps, and stops trials."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hpctrain.cli.json_output import schema
from hpctrain.cli.main import app
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus, write_status
from hpctrain.tune.ledger import SweepLedger, SweepPaths
from hpctrain.tune.trial import Trial
from tests.cli.test_json_output import check


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """Return a sweep of three trials: one ended, one failed, one at work when its tuner died."""
    ledger = SweepLedger(paths=SweepPaths(root=tmp_path))
    ledger.append("sweep-started", metric="loss", mode="min", seed=3)
    for number, (state, loss) in enumerate(
        [("finished", 0.5), ("failed", 0.25), ("running", 0.75)]
    ):
        name = f"trial_0000{number}"
        ledger.add_trial(Trial(trial_id=name, config={"lr": 0.1 * number, "layers": [1, 2]}))
        ledger.append("trial-started", trial=name, gpus=[])
        paths = RunPaths(tmp_path / name)
        paths.root.mkdir()
        write_status(
            paths, RunStatus(name=name, state=RunState(state), launcher="local", reports=1)
        )
        line = {"report": 1, "attempt": 1, "time": 1.0, "metrics": {"loss": loss}}
        paths.metrics.write_text(json.dumps({**line, "checkpoint": None}) + "\n")
    metrics = {"loss": 0.5, "trial_id": "trial_00000", "training_iteration": 1}
    ledger.append("trial-ended", trial="trial_00000", reports=1, metrics=metrics)
    ledger.append("trial-failed", trial="trial_00001", reason="out of memory\nTraceback")
    return tmp_path


def hpctrain_tune(*words: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["tune", *map(str, words)])
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


def test_the_trials_are_listed_and_how_to_go_on(sweep: Path) -> None:
    head, way, columns, *rows = hpctrain_tune("status", sweep).splitlines()
    assert head == f"{sweep.name}: interrupted, 3 trials (1 TERMINATED, 1 ERROR, 1 RUNNING)"
    assert way == f"go on with: Tuner.restore('{sweep}', trainable).fit()"
    assert columns.split() == ["TRIAL", "STATE", "REPORTS", "CONFIG", "METRICS"]
    assert [row.split()[:3] for row in rows] == [
        ["trial_00000", "TERMINATED", "1"],
        ["trial_00001", "ERROR", "0"],
        ["trial_00002", "RUNNING", "1"],
    ]
    assert rows[1].endswith("out of memory")
    assert rows[2].endswith("loss=0.75"), "of the run, which goes on"


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits_the_terminal(
    sweep: Path, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert max(map(len, hpctrain_tune("status", sweep).splitlines()[2:])) <= width


def test_the_best_trial_is_shown(sweep: Path) -> None:
    path, config, metrics, _ = hpctrain_tune("best", sweep).splitlines()
    assert path == str(sweep / "trial_00001")
    assert "lr=0.1" in config
    assert metrics.endswith("loss=0.25")
    said = hpctrain_tune("best", sweep, "--mode", "max")
    assert said.startswith(str(sweep / "trial_00002"))
    assert "Did you mean 'loss'" in hpctrain_tune("best", sweep, "--metric", "los", code=2)
    assert "'min', 'max'" in hpctrain_tune("best", sweep, "--mode", "most", code=2)


@pytest.mark.parametrize("verb", ["status", "best"])
def test_json_is_as_its_schema_says(sweep: Path, verb: str) -> None:
    found: dict[str, Any] = json.loads(hpctrain_tune(verb, sweep, "--json"))
    check(found, schema(f"tune {verb}"))


def test_a_trial_is_stopped_if_there_is_one(sweep: Path) -> None:
    hpctrain_tune("stop", sweep, "trial_00002")
    assert RunPaths(sweep / "trial_00002").stop_request.exists()
    hpctrain_tune("stop", sweep, "trial_00000")
    assert not RunPaths(sweep / "trial_00000").stop_request.exists()
    assert "Did you mean 'trial_00002'" in hpctrain_tune("stop", sweep, "trial_0002", code=2)


def test_a_trial_that_is_paused_is_not_stopped_but_said(sweep: Path) -> None:
    ledger = SweepLedger(paths=SweepPaths(root=sweep))
    for event in ("trial-pause", "trial-paused"):
        ledger.append(event, trial="trial_00002", reports=1)
    assert "trial_00002  PAUSED" in hpctrain_tune("status", sweep)
    result = CliRunner().invoke(app, ["tune", "stop", str(sweep), "trial_00002"])
    assert "is paused, and goes on when it has a slot" in result.output
    assert not RunPaths(sweep / "trial_00002").stop_request.exists()


@pytest.mark.parametrize("verb", ["status", "best"])
def test_what_is_no_sweep_is_said(tmp_path: Path, verb: str) -> None:
    assert "it is not a sweep" in hpctrain_tune(verb, tmp_path, code=2)
    assert "it is not a sweep" in hpctrain_tune(verb, tmp_path / "nothing", code=2)
