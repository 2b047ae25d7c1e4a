from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hpctrain.rundir.ledger import append_event
from hpctrain.rundir.metrics import read_reports
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.staging import StagedPart, seal, staging_directory
from hpctrain.rundir.store import CheckpointStore
from hpctrain.tune.attempt_clock import AttemptClock
from hpctrain.tune.local_runner import LocalRunner
from hpctrain.tune.runner import Saved
from hpctrain.tune.slots import Capacity, Slots
from hpctrain.tune.trial import Origin, Transfer, Trial, TrialState
from hpctrain.tune.trial_progress import find_saved, make_report
from tests.tune.played import make_sweep


@pytest.fixture
def clock(tmp_path: Path) -> AttemptClock:
    """Of a run with two attempts: from 100 s to 130 s, and from 200 s on."""
    paths = RunPaths(tmp_path)
    append_event(paths, "attempt-started", attempt=1, time=100.0)
    append_event(paths, "attempt-ended", attempt=1, time=130.0)
    append_event(paths, "attempt-started", attempt=2, time=200.0)
    return AttemptClock(paths=paths)


def line(report: int, *, attempt: int, time: float, **metrics: Any) -> dict[str, Any]:
    return {"report": report, "attempt": attempt, "time": time, "metrics": metrics}


def clone_of_another(trial: Trial, *, report: int, attempt: int) -> Origin:
    transfer = Transfer(
        number=1,
        time=150.0,
        donor="trial_00001",
        checkpoint="000009",
        iteration=9,
        seconds=500.0,
        config={},
    )
    origin = Origin(transfer=transfer, report=report, attempt=attempt)
    trial.receive(origin)
    return origin


def save(clock: AttemptClock, *, report: int, attempt: int) -> None:
    checkpoints = clock.paths.checkpoints
    part = staging_directory(checkpoints, attempt=attempt, report=report, rank=0)
    part.mkdir(parents=True)
    (part / "model").write_bytes(b"m")
    CheckpointStore(checkpoints).commit(
        attempt=attempt,
        report=report,
        world_size=1,
        metrics={},
        parts={0: StagedPart(files=tuple(seal(part)))},
    )


def test_a_report_counts_the_seconds_of_attempts_and_not_those_between(clock: AttemptClock):
    trial = Trial(trial_id="trial_00000", config={})
    report = make_report(trial, clock, line(4, attempt=2, time=207.0, loss=0.5))
    assert report.metrics == {
        "training_iteration": 4,
        "time_total_s": 37.0,
        "trial_id": "trial_00000",
        "loss": 0.5,
    }
    assert (report.number, report.attempt, report.is_partial) == (4, 2, False)


def test_after_a_checkpoint_of_another_trial_its_reports_count_too(clock: AttemptClock):
    trial = Trial(trial_id="trial_00000", config={})
    clone_of_another(trial, report=3, attempt=1)
    before = make_report(trial, clock, line(3, attempt=1, time=120.0))
    after = make_report(trial, clock, line(5, attempt=2, time=207.0))
    assert (before.metrics["training_iteration"], before.metrics["time_total_s"]) == (3, 20.0)
    assert (after.metrics["training_iteration"], after.metrics["time_total_s"]) == (11, 507.0)


def test_a_trial_that_has_saved_nothing_has_no_newest_checkpoint(clock: AttemptClock):
    assert find_saved(Trial(trial_id="trial_00000", config={}), clock) is None


def test_the_newest_checkpoint_may_be_that_of_another_trial(clock: AttemptClock):
    trial = Trial(trial_id="trial_00000", config={})
    save(clock, report=3, attempt=1)
    saved = find_saved(trial, clock)
    assert saved is not None
    assert (saved.name, saved.iteration) == ("000003", 3)
    clone_of_another(trial, report=3, attempt=1)
    assert find_saved(trial, clock) == Saved(name="000003", iteration=9, seconds=500.0)


def test_a_restored_sweep_knows_which_reports_are_partial_and_others_need_not(tmp_path: Path):
    trial = Trial(trial_id="trial_00000", config={})
    runner = LocalRunner(lambda trial_id, config: None, lambda name: tmp_path / name)  # type: ignore[arg-type,return-value]
    paths = RunPaths(tmp_path / trial.trial_id)
    paths.root.mkdir()
    lines = [{**line(1, attempt=1, time=101.0), "partial": True}, line(2, attempt=1, time=102.0)]
    paths.metrics.write_text("".join(json.dumps(each) + "\n" for each in lines))
    assert [report.is_partial for report in runner.history(trial)] == [True, False]
    assert all("partial" not in report for report in read_reports(paths))


def test_a_trial_that_begins_anew_has_spent_no_seconds_yet(tmp_path: Path):
    def begin(time: float) -> None:
        paths.root.mkdir()
        append_event(paths, "attempt-started", attempt=1, time=time)
        paths.metrics.write_text(json.dumps(line(1, attempt=1, time=time + 5)) + "\n")

    trial = Trial(trial_id="trial_00000", config={}, state=TrialState.ERROR)
    paths = RunPaths(tmp_path / trial.trial_id)
    runner: Any = LocalRunner(lambda trial_id, config: None, lambda name: tmp_path / name)  # type: ignore[arg-type,return-value]
    sweep = make_sweep(runner, tmp_path, slots=Slots(Capacity(cpus=1)))
    for time in (1000.0, 90_000.0):
        begin(time)
        assert runner.history(trial)[0].metrics["time_total_s"] == 5.0
        paths.root.rename(tmp_path / f"aside-{time}")
        sweep.retry(trial, anew=True)
