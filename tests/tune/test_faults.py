"""Sweeps whose files vanish, whose trials a person stops, and whose scheduler raises errors."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import hpctrain
from hpctrain import ConfigError, FailureConfig, RunConfig, tune
from hpctrain.cli.main import app
from hpctrain.errors import LaunchError
from hpctrain.launch import background
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus, write_status
from hpctrain.tune import sweep_plan
from hpctrain.tune.ledger import SweepLedger, SweepPaths, read_record
from hpctrain.tune.local_runner import LocalRunner
from hpctrain.tune.runner import Look
from hpctrain.tune.schedulers import TrialScheduler
from hpctrain.tune.trial import Trial, TrialState
from tests.tune.played import FakeRunner, Script, make_sweep, running, states


@pytest.fixture(autouse=True)
def local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCTRAIN_LAUNCHER", "local")


def train(config: dict[str, Any]) -> None:
    hpctrain.report({"loss": 1.0})


def make_tuner(storage: Path, **options: Any) -> tune.Tuner:
    run_config = RunConfig(storage_path=storage, name="sweep", verbose=0)
    return tune.Tuner(train, **{"run_config": run_config, **options})


def test_a_trial_whose_line_is_damaged_runs_again_and_no_other_does(tmp_path: Path) -> None:
    runner = FakeRunner(capacity=1)
    make_sweep(runner, tmp_path, num_samples=3).run()
    ledger = SweepPaths(root=tmp_path).events
    lines = ledger.read_text().splitlines(keepends=True)
    (lost,) = [
        i for i, line in enumerate(lines) if '"trial-added"' in line and "trial_00001" in line
    ]
    lines[lost] = '{"event": "trial-a#?\n'
    ledger.write_text("".join(lines))
    runner.started = []
    second = make_sweep(runner, tmp_path, num_samples=3)
    second.adopt(read_record(SweepPaths(root=tmp_path)).trials)
    second.run()
    assert runner.started == ["trial_00001"]
    assert sorted(second.trials) == ["trial_00000", "trial_00001", "trial_00002"]
    assert states(second) == 3 * ["TERMINATED"]


class Told(TrialScheduler):
    """Notes what it is told."""

    needs_metric = False

    def __init__(self, log: Path) -> None:
        super().__init__()
        self.log = log

    def on_result(self, trial_id: str, metrics: Mapping[str, Any]) -> Any:
        self._note(metrics["loss"])
        return self.CONTINUE

    def on_complete(self, trial_id: str, metrics: Mapping[str, Any]) -> None:
        self._note(f"end {metrics['loss']}")

    def _note(self, what: object) -> None:
        with self.log.open("a") as file:
            file.write(f"{what}\n")


def test_the_last_attempt_counts_where_the_first_had_made_more_reports(tmp_path: Path) -> None:
    mark, log = tmp_path / "mark", tmp_path / "told"

    def train_twice(config: dict[str, Any]) -> None:
        if not mark.exists():
            for value in (100, 101, 102):
                hpctrain.report({"loss": value})
            mark.touch()
            raise ValueError("the first attempt fails")
        hpctrain.report({"loss": 1})
        hpctrain.report({"loss": 2})

    grid = tune.Tuner(
        train_twice,
        tune_config=tune.TuneConfig(scheduler=Told(log)),
        run_config=RunConfig(
            storage_path=tmp_path,
            name="sweep",
            verbose=0,
            failure_config=FailureConfig(max_failures=1),
        ),
    ).fit()
    assert grid[0].metrics == {"loss": 2}
    trial = read_record(SweepPaths(root=tmp_path / "sweep")).trials["trial_00000"]
    assert (trial.reports, trial.metrics["loss"]) == (2, 2)
    assert log.read_text().splitlines()[-1] == "end 2"
    restored = tune.Tuner.restore(tmp_path / "sweep", train_twice).fit()
    assert restored[0].metrics == {"loss": 2}


def test_a_run_whose_files_are_gone_has_ended(tmp_path: Path) -> None:
    runner = LocalRunner(lambda trial_id, config: None, lambda name: tmp_path / name)  # type: ignore[arg-type,return-value]
    trial = Trial(trial_id="trial_00000", config={})
    end = runner.look(trial).end
    assert end is not None
    assert (end.failed, end.was_stopped) == (False, True), "its start was interrupted"
    running(RunPaths(tmp_path / "trial_00001"))
    trial = Trial(trial_id="trial_00001", config={})
    runner.look(trial)
    shutil.rmtree(tmp_path / "trial_00001")
    end = runner.look(trial).end
    assert end is not None
    assert end.failed
    assert "is gone" in end.reason


@pytest.mark.parametrize("state", [RunState.RUNNING, RunState.STOPPED])
def test_a_trial_that_a_person_stops_has_ended_and_not_failed(
    tmp_path: Path, state: RunState
) -> None:
    """Its tuner may see its executor die first, or may not be there at all."""
    ledger = SweepLedger(paths=SweepPaths(root=tmp_path))
    ledger.append("sweep-started", seed=0)
    trial = Trial(trial_id="trial_00000", config={})
    ledger.add_trial(trial)
    paths = RunPaths(tmp_path / "trial_00000")
    running(paths)
    runner = LocalRunner(lambda trial_id, config: None, lambda name: tmp_path / name)  # type: ignore[arg-type,return-value]
    said = CliRunner().invoke(app, ["tune", "stop", str(tmp_path), "trial_00000"])
    assert said.exit_code == 0, said.output
    if state is RunState.STOPPED:
        write_status(paths, RunStatus(name="trial_00000", state=state, launcher="local"))
        assert runner.attach(trial), "it is not to run again"
    end = runner.look(trial).end
    assert end is not None
    assert (end.failed, end.was_stopped) == (False, True)


@dataclass
class StoppedByAPerson(FakeRunner):
    """Every run that is asked to stop was stopped by a person just before."""

    def look(self, trial: Trial) -> Look:
        look = super().look(trial)
        if look.end is None or not look.end.was_stopped:
            return look
        return replace(look, end=replace(look.end, is_for_good=True, reason="by a person"))


class Pauses(TrialScheduler):
    """Pauses each trial at its first report."""

    needs_metric = False

    def on_result(self, trial_id: str, metrics: Mapping[str, Any]) -> Any:
        return self.PAUSE


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_a_trial_that_a_person_stops_does_not_go_on_after_a_pause_or_ctrl_c(
    tmp_path: Path, is_interrupted: bool
) -> None:
    runner = StoppedByAPerson({"trial_00000": Script(hangs=True)}, capacity=1)
    if is_interrupted:
        runner.interrupt_at = 4
        with pytest.raises(KeyboardInterrupt):
            make_sweep(runner, tmp_path, num_samples=1).run()
    else:
        make_sweep(runner, tmp_path, num_samples=1, scheduler=Pauses()).run()
    (trial,) = read_record(SweepPaths(root=tmp_path)).trials.values()
    assert (trial.state, trial.reason) == (TrialState.TERMINATED, "by a person")
    assert runner.started == ["trial_00000"]


SCRIPT = """
import sys, time, hpctrain
from hpctrain import RunConfig, tune
import gains

def train(config):
    for _ in range(3):
        hpctrain.report({"gain": gains.gain()})
    if config["x"] == 1:
        open("gains.py", "w").write("def gain(): return 2")

if __name__ == "__main__":
    if sys.argv[1] == "new":
        tuner = tune.Tuner(
            train,
            param_space={"x": tune.grid_search([1, 2])},
            tune_config=tune.TuneConfig(max_concurrent_trials=1),
            run_config=RunConfig(name="s", storage_path=".", verbose=0),
        )
    else:
        tuner = tune.Tuner.restore("s", train, restart_errored=True)
    print([result.metrics["gain"] for result in tuner.fit()])
"""


def test_a_module_that_is_edited_between_two_trials_changes_none_of_them(tmp_path: Path) -> None:
    def run(how: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "sweep.py", how],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )

    (tmp_path / "gains.py").write_text("def gain(): return 1")
    (tmp_path / "sweep.py").write_text(SCRIPT)
    done = run("new")
    assert (done.stdout, done.stderr) == ("[1, 1]\n", "")
    # In a restored sweep the new code is run, and that is said.
    SweepLedger(paths=SweepPaths(root=tmp_path / "s")).append(
        "trial-added", trial="trial_00002", config={"x": 3}
    )
    restored = run("restore")
    assert restored.stdout == "[1, 1, 2]\n"
    assert "the code has changed since the sweep began: gains.py." in restored.stderr


class Broken(TrialScheduler):
    """Raises errors, whatever it is told."""

    needs_metric = False

    def on_result(self, trial_id: str, metrics: Mapping[str, Any]) -> Any:
        raise ZeroDivisionError("the first error")

    def on_complete(self, trial_id: str, metrics: Mapping[str, Any]) -> None:
        raise KeyError("one that would hide it")


def test_an_error_of_a_scheduler_stops_all_trials_and_is_the_one_that_is_raised(
    tmp_path: Path,
) -> None:
    runner = FakeRunner({"trial_00001": Script(hangs=True)}, capacity=2)
    sweep = make_sweep(runner, tmp_path, num_samples=2, scheduler=Broken())
    with pytest.raises(ZeroDivisionError, match="the first error"):
        sweep.run()
    assert not runner.at_work
    trials = read_record(SweepPaths(root=tmp_path)).trials
    assert not [t for t in trials.values() if t.state is TrialState.RUNNING]


def test_a_ledger_that_cannot_be_written_is_said_with_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, calls = SweepLedger.append, []

    def fail_later(self: SweepLedger, event: str, **details: Any) -> None:
        calls.append(event)
        if event == "trial-ended":
            raise OSError(28, "No space left on device", str(self.paths.events))
        append(self, event, **details)

    monkeypatch.setattr(SweepLedger, "append", fail_later)
    with pytest.raises(LaunchError, match=r"cannot be written: No space.*Tuner\.restore"):
        make_tuner(tmp_path).fit()
    assert "trial-ended" in calls


@pytest.mark.parametrize("event", ["sweep-started", "trial-added", "sweep-ended"])
def test_a_ledger_that_cannot_be_written_at_any_moment_keeps_a_sweep_that_can_be_begun_or_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, event: str
) -> None:
    append, fails = SweepLedger.append, [event]

    def fail_once(self: SweepLedger, kind: str, **details: Any) -> None:
        if kind in fails:
            fails.remove(kind)
            with self.paths.events.open("a") as file:
                file.write('{"event": "')
            raise OSError(28, "No space left on device", str(self.paths.events))
        append(self, kind, **details)

    monkeypatch.setattr(SweepLedger, "append", fail_once)
    next_step = "begin the sweep again" if event == "sweep-started" else r"Tuner\.restore"
    with pytest.raises(LaunchError, match=rf"tune\.jsonl cannot be written: .*{next_step}"):
        make_tuner(tmp_path).fit()
    has_begun = tune.Tuner.can_restore(tmp_path / "sweep")
    assert has_begun == (event != "sweep-started")
    tuner = tune.Tuner.restore(tmp_path / "sweep", train) if has_begun else make_tuner(tmp_path)
    assert [result.metrics for result in tuner.fit()] == [{"loss": 1.0}]


def test_a_full_disk_at_the_start_of_a_trial_ends_the_sweep_and_no_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, full = background.initial_status, [True]

    def fail_once(*arguments: Any) -> Any:
        if full:
            full.clear()
            raise OSError(28, "No space left on device", str(tmp_path / "sweep/trial_00000"))
        return write(*arguments)

    monkeypatch.setattr(background, "initial_status", fail_once)
    with pytest.raises(LaunchError, match=r"trial_00000 cannot be written: .*Tuner\.restore"):
        make_tuner(tmp_path).fit()
    (trial,) = read_record(SweepPaths(root=tmp_path / "sweep")).trials.values()
    assert trial.state is TrialState.PENDING
    grid = tune.Tuner.restore(tmp_path / "sweep", train).fit()
    assert [result.metrics for result in grid] == [{"loss": 1.0}]


def test_what_another_tuner_has_done_meanwhile_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = sweep_plan.check_first_trials
    other = make_tuner(tmp_path, param_space={"x": tune.grid_search([1, 2])})

    def let_other_run(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(sweep_plan, "check_first_trials", check)
        other.fit()
        return check(*arguments, **options)

    monkeypatch.setattr(sweep_plan, "check_first_trials", let_other_run)
    with pytest.raises(ConfigError, match="is a sweep already"):
        make_tuner(tmp_path).fit()
    restored = tune.Tuner.restore(tmp_path / "sweep", train)
    monkeypatch.setattr(sweep_plan, "check_first_trials", let_other_run)
    other = tune.Tuner.restore(tmp_path / "sweep", train)
    restored.fit()
    started = [
        line
        for line in (tmp_path / "sweep/tune.jsonl").read_text().splitlines()
        if '"trial-started"' in line
    ]
    assert len(started) == 2, "each trial began once"
