"""``hpctrain tune``: looks at sweeps, and stops trials."""

from __future__ import annotations

import json
import os
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
from hpctrain.tune.metric_check import MetricCheck, UnreportedMetricError
from hpctrain.tune.runner import Report
from hpctrain.tune.trial import Trial
from tests.cli.test_json_output import check

GOLDEN = Path(__file__).parent / "golden"


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
        write_run(tmp_path / name, state, reports=1, metrics={"loss": loss})
    metrics = {"loss": 0.5, "trial_id": "trial_00000", "training_iteration": 1}
    ledger.append("trial-ended", trial="trial_00000", reports=1, metrics=metrics)
    ledger.append("trial-failed", trial="trial_00001", reason="out of memory\nTraceback")
    return tmp_path


@pytest.fixture
def long_sweep(tmp_path: Path) -> Path:
    """Return a sweep whose names and values are longer than a terminal is wide."""
    root = tmp_path / "resnet50-imagenet"
    root.mkdir()
    ledger = SweepLedger(paths=SweepPaths(root=root))
    ledger.append("sweep-started", metric="val/loss", mode="min", seed=3)
    config = {
        "lr": 0.000123456789,
        "optimizer": {"name": "adamw", "betas": [0.9, 0.999], "weight_decay": 0.1},
        "schedule": "cosine-with-warm-up-and-restarts",
    }
    for number, event in enumerate(("trial-ended", "trial-stop", "trial-failed", None)):
        name = f"trial_{number:05d}"
        ledger.add_trial(Trial(trial_id=name, config={**config, "layers": number}))
        if event is None:
            continue
        ledger.append("trial-started", trial=name, gpus=[])
        metrics = {"val": {"loss": 0.5 / (number + 1)}, "größe": 1e-9, "note": "\x1b[2J" * 9}
        write_run(root / name, "finished", reports=1200, metrics=metrics)
        reason = {"trial-failed": "rank 0 of 1 failed: CUDA out of memory " * 5}.get(event)
        ledger.append(event, trial=name, reports=1200, metrics=metrics, reason=reason)
    return root


def write_run(root: Path, state: str, *, reports: int, metrics: dict[str, Any]) -> None:
    """Write what is read of the run of a trial: its state, and its last report."""
    paths = RunPaths(root)
    paths.root.mkdir()
    status = RunStatus(name=root.name, state=RunState(state), launcher="local", reports=reports)
    write_status(paths, status.with_changes(attempt=1))
    line = {"report": reports, "attempt": 1, "time": 1.0, "metrics": metrics, "checkpoint": None}
    paths.metrics.write_text(json.dumps(line) + "\n")


def hpctrain_tune(*words: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["tune", *map(str, words)])
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


def test_the_trials_are_listed_and_how_to_go_on(sweep: Path) -> None:
    head, way, retry, columns, *rows = hpctrain_tune("status", sweep).splitlines()
    assert head == f"{sweep.name}: interrupted, 3 trials (1 TERMINATED, 1 ERROR, 1 RUNNING)"
    assert way == f"go on with: Tuner.restore('{sweep}', trainable).fit()"
    assert retry.strip() == "with resume_errored=True trials that failed go on, too"
    assert columns.split() == ["TRIAL", "STATE", "REPORTS", "CONFIG", "METRICS"]
    assert [row.split()[:3] for row in rows] == [
        ["trial_00000", "TERMINATED", "1"],
        ["trial_00001", "ERROR", "0"],
        ["trial_00002", "RUNNING", "1"],
    ]
    assert rows[1].endswith("out of memory")
    assert rows[2].endswith("loss=0.75"), "of the run, which goes on"


def test_trials_that_failed_for_want_of_the_metric_are_to_begin_anew(tmp_path: Path) -> None:
    ledger = SweepLedger(paths=SweepPaths(root=tmp_path))
    ledger.append("sweep-started", metric="loss", mode="min", seed=3)
    trial = Trial(trial_id="trial_00000", config={}, metrics={"los": 1.0}, reports=1)
    ledger.add_trial(trial)
    ledger.append("trial-started", trial=trial.trial_id, gpus=[])
    report = Report(number=1, time=1.0, attempt=1, metrics={"los": 1.0})
    with pytest.raises(UnreportedMetricError) as caught:
        MetricCheck({"loss": "TuneConfig(metric=...)"}).note(trial, report, is_first=True)
    ledger.append("trial-failed", trial=trial.trial_id, reason=str(caught.value))
    _, _, retry, *_ = hpctrain_tune("status", tmp_path).splitlines()
    assert retry.startswith("  with restart_errored=True trials that failed begin anew")


@pytest.fixture
def sweep_of_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a sweep of four trials: one ended, one at work, one in the queue, one without a job.

    What is squeue here prints recorded lines.
    """
    squeue = tmp_path / "bin" / "squeue"
    squeue.parent.mkdir()
    squeue.write_text("#!/bin/sh\nprintf '11|RUNNING|None\\n12|PENDING|Priority\\n'\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{squeue.parent}:{os.environ['PATH']}")
    root = tmp_path / "jobs"
    root.mkdir()
    ledger = SweepLedger(paths=SweepPaths(root=root))
    ledger.append("sweep-started", metric="loss", mode="min", seed=3, launcher="slurm")
    for number, state in enumerate(["finished", "running", "submitted", None]):
        name = f"trial_{number:05d}"
        ledger.add_trial(Trial(trial_id=name, config={"lr": 0.1 * number}))
        if state is None:
            continue
        ledger.append("trial-started", trial=name, gpus=[])
        write_run(root / name, state, reports=1, metrics={"loss": 0.5})
        paths = RunPaths(root / name)
        status = RunStatus(
            name=name, state=RunState(state), launcher="slurm", job_id=str(10 + number), attempt=1
        )
        write_status(paths, status.placed_in(paths.root))
    ledger.append("trial-ended", trial="trial_00000", reports=1, metrics={"loss": 0.5})
    return root


def test_the_jobs_of_trials_are_shown_and_why_they_wait(sweep_of_jobs: Path) -> None:
    _, _, columns, *rows = hpctrain_tune("status", sweep_of_jobs).splitlines()
    assert columns.split() == ["TRIAL", "STATE", "JOB", "REPORTS", "CONFIG", "METRICS"]
    assert [row.split()[:3] for row in rows] == [
        ["trial_00000", "TERMINATED", "10"],
        ["trial_00001", "RUNNING", "11"],
        ["trial_00002", "RUNNING", "12"],
        ["trial_00003", "PENDING", "0"],
    ]
    assert rows[1].endswith(" loss=0.5")
    assert rows[2].endswith("waits (Priority)  loss=0.5")
    found = json.loads(hpctrain_tune("status", sweep_of_jobs, "--json"))
    check(found, schema("tune status"))
    jobs = [(t["job_id"], t["job_state"], t["job_reason"]) for t in found["trials"]]
    assert jobs == [
        ("10", None, None),
        ("11", "RUNNING", None),
        ("12", "PENDING", "Priority"),
        (None, None, None),
    ]


def test_jobs_are_shown_where_slurm_does_not_answer(
    sweep_of_jobs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    found = json.loads(hpctrain_tune("status", sweep_of_jobs, "--json"))
    assert [trial["job_id"] for trial in found["trials"]] == ["10", "11", "12", None]
    assert {trial["job_state"] for trial in found["trials"]} == {None}


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("verb", ["status", "best"])
def test_what_a_terminal_shows(
    long_sweep: Path, verb: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    shown = hpctrain_tune(verb, long_sweep).replace(str(long_sweep.parent), "/runs")
    golden = GOLDEN / f"tune-{verb}-{width}.txt"
    assert shown.splitlines() == golden.read_text(encoding="utf-8").splitlines()
    # The way on is a line to copy.
    lines = [line for line in shown.splitlines() if "Tuner.restore" not in line]
    assert max(map(len, lines)) <= width


def test_the_best_trial_is_shown(sweep: Path) -> None:
    path, config, metrics, _ = hpctrain_tune("best", sweep).splitlines()
    assert path == str(sweep / "trial_00001")
    assert "lr=0.1" in config
    assert metrics.endswith("loss=0.25")
    said = hpctrain_tune("best", sweep, "--mode", "max")
    assert said.startswith(str(sweep / "trial_00002"))
    typo = ("--metric", "los", "--mode", "min")
    assert "Did you mean 'loss'" in hpctrain_tune("best", sweep, *typo, code=2)
    assert "'min', 'max'" in hpctrain_tune("best", sweep, "--mode", "most", code=2)


def test_the_mode_of_another_metric_is_not_taken(sweep: Path) -> None:
    said = hpctrain_tune("best", sweep, "--metric", "accuracy", code=2)
    assert "--metric accuracy needs --mode" in said
    assert "'loss'" in said


def test_a_misspelled_mode_or_scope_is_named_as_it_was_typed(sweep: Path) -> None:
    assert "--mode is 'maxx'" in hpctrain_tune("best", sweep, "--mode", "maxx", code=2)
    assert "--scope is 'lst'" in hpctrain_tune("best", sweep, "--scope", "lst", code=2)


def test_a_sweep_without_a_metric_asks_for_the_options_that_lack(tmp_path: Path) -> None:
    ledger = SweepLedger(paths=SweepPaths(root=tmp_path))
    ledger.append("sweep-started", metric=None, mode=None, seed=3)
    for name in ("trial_00000", "trial_00001"):
        ledger.add_trial(Trial(trial_id=name, config={}))
        write_run(tmp_path / name, "finished", reports=1, metrics={"loss": 1.0})
    assert "--metric and --mode are needed" in hpctrain_tune("best", tmp_path, code=2)
    assert "by: --mode is needed" in hpctrain_tune("best", tmp_path, "--metric", "loss", code=2)
    assert hpctrain_tune("best", tmp_path, "--metric", "loss", "--mode", "min")


@pytest.mark.parametrize("field", [{"metric": 5}, {"mode": ["min"]}, {"seed": "3"}])
def test_a_beginning_that_is_damaged_is_left_out(tmp_path: Path, field: dict[str, Any]) -> None:
    ledger = SweepLedger(paths=SweepPaths(root=tmp_path))
    ledger.append("sweep-started", **{"metric": "loss", "mode": "min", "seed": 3, **field})
    ledger.add_trial(Trial(trial_id="trial_00000", config={}))
    for verb in ("status", "best"):
        assert "it is not a sweep" in hpctrain_tune(verb, tmp_path, code=2)


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


def test_a_trial_that_is_paused_ends_in_place_of_going_on(sweep: Path) -> None:
    ledger = SweepLedger(paths=SweepPaths(root=sweep))
    for event in ("trial-pause", "trial-paused"):
        ledger.append(event, trial="trial_00002", reports=1)
    RunPaths(sweep / "trial_00002").status.unlink()
    assert "trial_00002  PAUSED" in hpctrain_tune("status", sweep)
    result = CliRunner().invoke(app, ["tune", "stop", str(sweep), "trial_00002"])
    assert "does not run any more: it ends when the sweep goes on" in result.output
    assert SweepPaths(root=sweep).stop_mark("trial_00002").exists()
    assert not RunPaths(sweep / "trial_00002").stop_request.exists()


@pytest.mark.parametrize(
    ("verb", "rest"),
    [("status", ()), ("best", ()), ("stop", ("t",)), ("logs", ("t",)), ("export", ("t.csv",))],
)
def test_what_is_no_sweep_is_said(tmp_path: Path, verb: str, rest: tuple[str, ...]) -> None:
    assert "it is not a sweep" in hpctrain_tune(verb, tmp_path, *rest, code=2)
    assert "it is not a sweep" in hpctrain_tune(verb, tmp_path / "nothing", *rest, code=2)


def test_the_output_of_a_trial_is_that_of_its_run(sweep: Path) -> None:
    for rank in (0, 1):
        log = RunPaths(sweep / "trial_00001").rank_log(1, rank)
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(f"rank {rank}\nCUDA out of memory\n")
    for words in ((), ("--rank", "1"), ("-n", "1"), ("--attempt", "1")):
        shown = hpctrain_tune("logs", sweep, "trial_00001", *words)
        alone = CliRunner().invoke(app, ["logs", str(sweep / "trial_00001"), *words])
        assert shown == alone.stdout != ""
    assert hpctrain_tune("logs", sweep, "trial_00001", "-n1") == "CUDA out of memory\n"
    assert "has no logs/1/rank-00000.out" in hpctrain_tune("logs", sweep, "trial_00000", code=2)
    assert "Did you mean 'trial_00002'" in hpctrain_tune("logs", sweep, "trial_0002", code=2)
    SweepLedger(paths=SweepPaths(root=sweep)).add_trial(Trial(trial_id="trial_00003", config={}))
    assert "trial_00003 has not begun" in hpctrain_tune("logs", sweep, "trial_00003", code=2)


@pytest.mark.parametrize("verb", ["status", "logs", "why", "history", "checkpoints", "cancel"])
def test_what_asks_for_a_run_says_that_it_was_given_a_sweep(sweep: Path, verb: str) -> None:
    result = CliRunner().invoke(app, [verb, str(sweep)])
    assert result.exit_code == 2, result.output
    assert "is a sweep, and each of its trials is a run" in result.stderr
    assert f"hpctrain tune status {sweep}" in result.stderr


def test_all_reports_are_exported(
    sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = hpctrain_tune("export", sweep, "table.csv")
    assert said == f"{tmp_path / 'table.csv'}: 3 rows of 3 trials, 8 columns\n"
    head, *rows = (tmp_path / "table.csv").read_text().splitlines()
    assert head.endswith(",attempt,loss,config/lr,config/layers")
    assert rows[1] == 'trial_00001,ERROR,1,1.0,1,0.25,0.1,"[1, 2]"'
    assert "exists" in hpctrain_tune("export", sweep, "table.csv", code=2)
    found = json.loads(hpctrain_tune("export", sweep, "table.csv", "--force", "--json"))
    check(found, schema("tune export"))
    assert (found["rows"], found["columns"][-1]) == (3, "config/layers")
