"""What a person stops: a trial, in whatever state it is, and a whole sweep."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hpctrain import RunStoppedError
from hpctrain.cli.main import app
from hpctrain.launch import cancel
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus, read_status, write_status
from hpctrain.tune import tuner_life
from hpctrain.tune.interruptions import Interruptions
from hpctrain.tune.ledger import SweepLedger, SweepPaths, read_record
from hpctrain.tune.overview import read_overview
from hpctrain.tune.person_stops import REASON, PersonStops, mark_stopped, request_stop
from hpctrain.tune.place import find_state
from hpctrain.tune.trial import Trial, TrialState
from tests.tune.played import FakeRunner, Script, make_sweep, states
from tests.tune.test_sweep import _Own
from tests.tune.test_tuner_life import PlayedTime, claim_from_elsewhere
from tests.waiting import wait_until

TIMEOUT_S = 120.0


def tune_stop(*words: object) -> str:
    result = CliRunner().invoke(app, ["tune", "stop", *map(str, words)])
    assert result.exit_code == 0, result.output
    return result.stderr


@pytest.mark.parametrize("state", [TrialState.PENDING, TrialState.PAUSED, TrialState.PAUSING])
def test_a_trial_that_waits_ends_without_running_once_more(
    state: TrialState, tmp_path: Path
) -> None:
    search = _Own()
    runner = FakeRunner({"trial_00000": Script(hangs=True)}, capacity=1)
    sweep = make_sweep(runner, tmp_path, num_samples=1, search=search)
    trial = Trial(trial_id="trial_00000", config={}, state=state, reports=2)
    sweep._trials.add(trial)
    mark_stopped(SweepPaths(root=tmp_path), "trial_00000")
    if state is TrialState.PAUSING:
        runner.start(trial)
        runner.stop(trial)
        runner.started.clear()
    person = PersonStops(SweepPaths(root=tmp_path))
    sweep._interruptions = Interruptions(find_stopped=person.trials)
    sweep.run()
    assert not runner.started
    assert states(sweep) == ["TERMINATED"]
    assert trial.reason == REASON
    record = read_record(SweepPaths(root=tmp_path))
    assert record.trials["trial_00000"].reason == REASON
    assert ("complete", "trial_00000", False) in search.told


def test_a_trial_that_was_stopped_the_moment_it_began_stops_too(tmp_path: Path) -> None:
    runner = FakeRunner({"trial_00000": Script(hangs=True)}, capacity=1)
    sweep = make_sweep(runner, tmp_path, num_samples=2)
    # The mark was not there yet when the trial was begun.
    sweep._interruptions = Interruptions(
        find_stopped=lambda: ["trial_00000", "trial_00099"] if runner.started else []
    )
    sweep.run()
    assert runner.asked == ["trial_00000"]
    assert states(sweep) == ["TERMINATED", "TERMINATED"]
    assert sweep.trials["trial_00000"].reason == REASON


@pytest.mark.parametrize("now", [False, True])
def test_a_sweep_stops_with_all_its_trials_which_a_restored_one_resumes(
    now: bool, tmp_path: Path
) -> None:
    paths = SweepPaths(root=tmp_path)
    scripts = {f"trial_{i:05d}": Script(values=[1.0] * 4, hangs=True) for i in range(2)}
    runner = FakeRunner(scripts)
    sweep = make_sweep(runner, tmp_path, num_samples=3)
    person = PersonStops(paths)
    sweep._interruptions = Interruptions(why_leave=person.why, is_urgent=lambda: person.is_now)
    request_stop(paths, now=now)
    with pytest.raises(RunStoppedError, match="because hpctrain tune stop asked for it"):
        sweep.run()
    assert runner.asked == ["trial_00000", "trial_00001"]
    assert runner.ended == (["trial_00000", "trial_00001"] if now else [])
    assert states(sweep) == ["PENDING", "PENDING"]
    assert find_state(paths, read_record(paths)) == "stopped"
    request = PersonStops(paths).withdraw()
    assert request is not None
    assert request.is_now is now
    assert find_state(paths, read_record(paths)) == "interrupted"


def test_an_empty_file_is_a_request_too_and_a_directory_is_looked_at_once_a_second(
    tmp_path: Path,
) -> None:
    now = [0.0]
    person = PersonStops(SweepPaths(root=tmp_path), clock=lambda: now[0])
    assert (person.why(), list(person.trials())) == ("", [])
    (tmp_path / "stop").touch()
    mark_stopped(SweepPaths(root=tmp_path), "trial_00003")
    assert (person.why(), list(person.trials())) == ("", [])
    now[0] = 1.0
    assert person.why()
    assert list(person.trials()) == ["trial_00003"]


def test_the_trials_of_a_sweep_without_a_tuner_are_stopped_themselves(tmp_path: Path) -> None:
    from tests.cli.test_tune import write_run

    ledger = SweepLedger(paths=SweepPaths(root=tmp_path))
    ledger.append("sweep-started", metric="loss", mode="min", seed=3)
    for name, state in (("trial_00000", "finished"), ("trial_00001", "running")):
        ledger.add_trial(Trial(trial_id=name, config={}))
        ledger.append("trial-started", trial=name)
        write_run(tmp_path / name, state, reports=1, metrics={})
    ledger.add_trial(Trial(trial_id="trial_00002", config={}))
    said = tune_stop(tmp_path)
    assert "has no tuner at work; trial_00001 were asked to stop at their next reports" in said
    assert "Tuner.restore(" in said
    run = RunPaths(tmp_path / "trial_00001")
    assert run.stop_request.exists()
    # It has stopped by now, which no tuner has seen.
    write_status(run, RunStatus(name="trial_00001", state=RunState.STOPPED, launcher="local"))
    shown = CliRunner().invoke(app, ["tune", "status", str(tmp_path)]).stdout
    assert "trial_00001  PENDING" in shown
    assert read_overview(tmp_path).counts["running"] == 1, "the one whose end was not seen"
    assert not RunPaths(tmp_path / "trial_00000").stop_request.exists()
    assert "it ends when the sweep goes on" in tune_stop(tmp_path, "trial_00002")
    assert SweepPaths(root=tmp_path).stop_mark("trial_00002").exists()
    ledger.append("sweep-ended", reason="")
    assert "is ended; there is nothing to stop" in tune_stop(tmp_path)


@pytest.mark.parametrize("now", [False, True])
def test_the_trials_of_a_tuner_that_died_elsewhere_are_stopped_themselves(
    now: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = SweepLedger(paths=SweepPaths(root=tmp_path))
    ledger.append("sweep-started", metric="loss", mode="min", seed=3, launcher="slurm")
    job = {"state": RunState.SUBMITTED, "launcher": "slurm"}
    of_trials: list[dict[str, Any]] = [
        {"state": RunState.RUNNING, "launcher": "local", "owner_host": "login1", "owner_pid": 7},
        # The host is this one, and its executor is gone.
        {
            "state": RunState.RUNNING,
            "launcher": "local",
            "owner_host": socket.gethostname(),
            "owner_pid": 2**22 + 1,
        },
        {**job, "job_id": "71"},
        {**job, "job_id": "72"},
    ]
    runs = []
    for number, status in enumerate(of_trials):
        name = f"trial_{number:05d}"
        ledger.add_trial(Trial(trial_id=name, config={}))
        ledger.append("trial-started", trial=name)
        runs.append(RunPaths(tmp_path / name))
        runs[-1].root.mkdir()
        write_status(runs[-1], RunStatus(name=name, **status))
    claim_from_elsewhere(tmp_path)
    clock = PlayedTime()
    monkeypatch.setattr(tuner_life, "time", clock)
    ended: list[str] = []
    monkeypatch.setattr(cancel, "find_job", lambda job_id: None)
    monkeypatch.setattr(cancel, "end_job", lambda paths, job_id, **_: ended.append(job_id) or "")
    result = CliRunner().invoke(app, ["tune", "stop", str(tmp_path), *(["--now"] if now else [])])
    assert 60 <= clock.now < 70
    assert [run.stop_request.exists() for run in runs] == [True, False, not now, not now]
    assert ended == (["71", "72"] if now else [])
    if now:
        # What can be ended from here is ended.
        assert result.exit_code == 2
        assert "trial_00000 is run by process 7 on login1" in result.stderr
    else:
        assert "has no tuner at work; trial_00000, trial_00002, trial_00003 were" in result.stderr


SCRIPT = """
    import sys, time
    from pathlib import Path
    import hpctrain
    from hpctrain import Checkpoint, RunConfig, tune

    def train(config):
        begun = 0
        if (checkpoint := hpctrain.get_checkpoint()) is not None:
            begun = checkpoint.to_dict()["step"]
        for step in range(begun + 1, begun + 4000):
            hpctrain.report({"begun": begun}, Checkpoint.from_dict({"step": step}))
            if Path("gate").exists() and step >= 4:
                return
            time.sleep(0.02)

    if __name__ == "__main__":
        if tune.Tuner.can_restore("s"):
            tuner = tune.Tuner.restore("s", train)
        else:
            tuner = tune.Tuner(
                train,
                param_space={"x": tune.grid_search([1, 2, 3])},
                run_config=RunConfig(storage_path=".", name="s"),
                tune_config=tune.TuneConfig(max_concurrent_trials=1),
            )
        print("BEGUN", [result.metrics.get("begun") for result in tuner.fit()])
"""


@pytest.fixture
def tuner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[subprocess.Popen[str]]]:
    """Start the script above whenever one is asked for, and end what it has left."""
    monkeypatch.setenv("HPCTRAIN_LAUNCHER", "local")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))
    started: list[subprocess.Popen[str]] = []
    yield started
    (tmp_path / "gate").touch()
    for process in started:
        process.kill()
        process.communicate()


def start(started: list[subprocess.Popen[str]]) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "script.py"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    started.append(process)
    return process


def test_a_sweep_that_a_person_stops_says_so_when_it_is_restored(
    tuner: list[subprocess.Popen[str]], tmp_path: Path
) -> None:
    root = tmp_path / "s"
    first = start(tuner)
    run = RunPaths(root / "trial_00000")
    wait_until(lambda: (status := read_status(run)) is not None and status.reports > 4)
    assert "asked the tuner of s to stop its trials" in tune_stop(root)
    said, _ = first.communicate(timeout=TIMEOUT_S)
    assert first.returncode == RunStoppedError.exit_code, said
    assert "hpctrain tune stop asked for it" in said
    assert f"Tuner.restore('{root}', trainable).fit() goes on" in said
    assert "In another job" not in said
    status = read_status(run)
    assert status is not None
    assert status.state.value == "stopped"
    shown = CliRunner().invoke(app, ["tune", "status", str(root)]).stdout
    assert shown.startswith("s: stopped, ")
    assert "go on with: Tuner.restore(" in shown
    (tmp_path / "gate").touch()
    second = start(tuner)
    said, _ = second.communicate(timeout=TIMEOUT_S)
    assert second.returncode == 0, said
    assert "sweep s was stopped by hpctrain tune stop at " in said
    assert "BEGUN [" in said
    assert "BEGUN [0" not in said, "it resumes from its checkpoint"
    assert not (root / "stop").exists()


def test_a_copy_of_a_sweep_that_runs_is_one_of_its_own(
    tuner: list[subprocess.Popen[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = start(tuner)
    run = RunPaths(tmp_path / "s/trial_00000")
    wait_until(lambda: (status := read_status(run)) is not None and status.reports > 4)
    # What is written meanwhile may vanish under cp, which says so and goes on.
    subprocess.run(["cp", "-r", "s", "copies"], stderr=subprocess.PIPE, check=False)
    copy, original = tmp_path / "copies", read_status(run)
    assert original is not None
    shown = CliRunner().invoke(app, ["tune", "status", str(copy)]).stdout
    # Its status may be what vanished under cp.
    found = r"copies: interrupted, 1 trial \(1 (RUNNING|PENDING)\); a copy of "
    assert re.match(found + re.escape(str(tmp_path / "s")), shown)
    assert "none of its trials runs" in tune_stop(copy)
    (tmp_path / "work").mkdir()
    (tmp_path / "work/gate").touch()
    (tmp_path / "script.py").rename(tmp_path / "work/script.py")
    copy.rename(tmp_path / "work/s")
    monkeypatch.chdir(tmp_path / "work")
    second = start(tuner)
    said, _ = second.communicate(timeout=TIMEOUT_S)
    assert second.returncode == 0, said
    assert f"sweep s is a copy of {tmp_path / 's'}, and goes on as one of its own" in said
    assert "BEGUN [0" not in said, "it resumes from the checkpoints that were copied"
    # The original has noticed nothing.
    assert first.poll() is None
    after = read_status(run)
    assert after is not None
    assert (after.owner_pid, after.attempt) == (original.owner_pid, 1)
    assert not SweepPaths(root=tmp_path / "s").stop_request.exists()
    (tmp_path / "gate").touch()
    said, _ = first.communicate(timeout=TIMEOUT_S)
    assert first.returncode == 0, said
