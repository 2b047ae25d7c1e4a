"""Sweeps whose tuner was at work on another host."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import hpctrain
from hpctrain import ConfigError, RunConfig, tune
from hpctrain.cli.main import app
from hpctrain.errors import LaunchError, RunStoppedError, SupersededError
from hpctrain.launch import life
from hpctrain.launch.claim import find_claim, release_claim
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus, read_status, write_status
from hpctrain.tune import local_runner, place, tuner, tuner_life
from hpctrain.tune.interruptions import Interruptions
from hpctrain.tune.ledger import SweepLedger, SweepPaths, read_record
from hpctrain.tune.local_runner import LocalRunner
from hpctrain.tune.place import find_state, held
from hpctrain.tune.trial import Trial
from tests.tune.played import FakeRunner, Script, make_sweep, states
from tests.waiting import wait_until


@pytest.fixture(autouse=True)
def local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCTRAIN_LAUNCHER", "local")


@dataclass
class PlayedTime:
    """A clock that moves when somebody sleeps."""

    at_sleep: Callable[[], object] = lambda: None
    now: float = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        assert self.now < 1000
        self.at_sleep()

    def time(self) -> float:
        return time.time()


def claim_from_elsewhere(root: Path, **job: object) -> Path:
    """Leave the claim of a tuner of another host, in a job if one is given."""
    claim = root / ".claim-9"
    claim.mkdir()
    owner = {"host": "node-that-is-gone", "pid": 7, "start": 1, "time": 1.0, "token": "t"}
    (claim / "owner").write_text(json.dumps({**owner, **job}))
    return claim


def train(config: dict[str, Any]) -> None:
    hpctrain.report({"loss": 1.0})


def fit(storage: Path) -> None:
    run_config = RunConfig(storage_path=storage, name="s", verbose=0)
    tune.Tuner(train, param_space={}, run_config=run_config).fit()


def test_the_time_budget_counts_for_how_long_a_tuner_that_died_had_lived(tmp_path: Path) -> None:
    run_config = RunConfig(storage_path=tmp_path, name="s", verbose=0)
    config = tune.TuneConfig(num_samples=2, time_budget_s=1000)
    tune.Tuner(train, param_space={}, tune_config=config, run_config=run_config).fit()
    paths = SweepPaths(root=tmp_path / "s")
    events = paths.events.read_text().splitlines(keepends=True)
    first = [line for line in events if '"trial_00000"' in line or "sweep-started" in line]
    paths.events.write_text("".join(first))
    # It died when it had been quiet for long.
    paths.alive.write_text(f"aa {600:020d}\n")
    results = tune.Tuner.restore(paths.root, train).fit()
    assert len(results) == 1
    ended = read_record(paths).ended
    assert ended is not None
    assert ended["reason"] == "time_budget_s=1000 is over"
    # And what it has spent is known from now on.
    assert tune.Tuner.restore(paths.root, train).fit()[0].metrics
    assert read_record(paths).earlier_s >= 1200


def test_a_restore_that_fails_early_forgets_no_time_that_was_spent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit(tmp_path)
    paths = SweepPaths(root=tmp_path / "s")
    # It died when it had lived for long.
    events = paths.events.read_text().splitlines(keepends=True)
    paths.events.write_text("".join(line for line in events if "sweep-ended" not in line))
    paths.alive.write_text(f"aa {600:020d}\n")

    def fail(*arguments: object, **options: object) -> None:
        raise ZeroDivisionError("of a scheduler")

    with monkeypatch.context() as patched:
        patched.setattr(tuner, "restore_sweep", fail)
        with pytest.raises(ZeroDivisionError):
            tune.Tuner.restore(paths.root, train).fit()
    assert tuner_life.seconds_of_last(paths) >= 1200
    tune.Tuner.restore(paths.root, train).fit()
    assert read_record(paths).earlier_s >= 1200
    assert tuner_life.seconds_of_last(paths) < 1200, "what was spent before is in the ledger"


@pytest.mark.parametrize("content", ["", "aa", "aa b\n", "\0\0", f"aa {7:020d}{'9' * 20}\n"])
def test_a_sign_of_life_that_is_damaged_says_nothing_absurd(tmp_path: Path, content: str) -> None:
    paths = SweepPaths(root=tmp_path)
    assert tuner_life.seconds_of_last(paths) == 0
    paths.alive.write_text(content)
    assert tuner_life.seconds_of_last(paths) <= 14


def test_the_sweep_of_a_tuner_that_died_elsewhere_is_taken_over_after_a_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    fit(tmp_path)
    claim_from_elsewhere(tmp_path / "s")
    clock = PlayedTime()
    monkeypatch.setattr(tuner_life, "time", clock)
    grid = tune.Tuner.restore(tmp_path / "s", train).fit()
    assert grid.num_terminated == 1
    assert 60 <= clock.now < 70
    said = capfd.readouterr().err
    assert "process 7 on node-that-is-gone runs the sweep s, or has died." in said
    assert "Waiting up to 60 s" in said
    assert find_claim(RunPaths(tmp_path / "s")) is None


def test_a_tuner_elsewhere_that_shows_signs_of_life_keeps_its_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit(tmp_path)
    claim = claim_from_elsewhere(tmp_path / "s")
    sign = SweepPaths(root=tmp_path / "s").alive
    clock = PlayedTime(at_sleep=lambda: clock.now < 50 or sign.write_text("another"))
    monkeypatch.setattr(tuner_life, "time", clock)
    with pytest.raises(ConfigError, match="process 7 on node-that-is-gone runs the sweep") as error:
        tune.Tuner.restore(tmp_path / "s", train).fit()
    assert "rm -r" not in str(error.value)
    assert (claim / "owner").read_text()
    # It has come to its end while it was watched.
    clock.now, clock.at_sleep = 0.0, lambda: (claim / "owner").write_text("")
    assert tune.Tuner.restore(tmp_path / "s", train).fit().num_terminated == 1
    assert clock.now < 5


def test_a_tuner_writes_signs_of_life_and_notices_that_it_was_taken_for_dead(
    tmp_path: Path,
) -> None:
    paths = SweepPaths(root=tmp_path)
    with held(paths) as own:
        first = wait_until(lambda: paths.alive.exists() and paths.alive.read_bytes())
        wait_until(lambda: paths.alive.read_bytes() != first)
        own.check()
        claim = find_claim(RunPaths(tmp_path))
        assert claim is not None
        release_claim(RunPaths(tmp_path), claim)
        with pytest.raises(SupersededError, match="another tuner has taken over the sweep"):
            own.check()
        with held(paths) as other:
            other.check()
            with pytest.raises(SupersededError):
                own.check()


def test_a_tuner_that_was_taken_for_dead_leaves_the_trials_to_the_other(tmp_path: Path) -> None:
    runner = FakeRunner({"trial_00000": Script(hangs=True)}, capacity=1)
    sweep = make_sweep(runner, tmp_path)

    def check() -> None:
        if runner.now > 3:
            raise SupersededError("another tuner")

    sweep._interruptions = Interruptions(check_hold=check)
    with pytest.raises(SupersededError):
        sweep.run()
    assert not runner.asked
    assert states(sweep) == ["RUNNING"]
    assert read_record(SweepPaths(root=tmp_path)).trials["trial_00000"].state.value == "RUNNING"


def test_trials_whose_executors_died_elsewhere_are_waited_for_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = [Trial(trial_id=f"trial_{i:05d}", config={}) for i in range(4)]
    ledger = SweepLedger(paths=SweepPaths(root=tmp_path))
    ledger.append("sweep-started", seed=0)
    for trial in trials:
        ledger.add_trial(trial)
        ledger.append("trial-started", trial=trial.trial_id)
        paths = RunPaths(tmp_path / trial.trial_id)
        paths.root.mkdir()
        status = RunStatus(name=trial.trial_id, state=RunState.RUNNING, launcher="local")
        elsewhere = {"owner_host": "node-that-is-gone", "owner_pid": 7}
        write_status(paths, status.with_changes(**elsewhere))
    clock = PlayedTime()
    monkeypatch.setattr(life, "time", clock)
    monkeypatch.setattr(local_runner, "time", clock)
    runner = LocalRunner(lambda trial_id, config: None, lambda name: tmp_path / name)  # type: ignore[arg-type,return-value]
    sweep = make_sweep(FakeRunner(), tmp_path)
    sweep._runner = runner
    sweep.adopt(read_record(SweepPaths(root=tmp_path)).trials)
    assert states(sweep) == 4 * ["PENDING"]
    assert 60 <= clock.now < 70
    ends = [read_status(RunPaths(tmp_path / trial.trial_id)) for trial in trials]
    assert [end.state for end in ends if end is not None] == 4 * [RunState.STOPPED]


def test_the_tuner_and_its_trials_are_waited_for_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit(tmp_path)
    root = tmp_path / "s"
    claim_from_elsewhere(root)
    ledger = SweepLedger(paths=SweepPaths(root=root))
    ledger.append("trial-added", trial="trial_00001", config={})
    ledger.append("trial-started", trial="trial_00001")
    (root / "trial_00001").mkdir()
    status = RunStatus(name="trial_00001", state=RunState.RUNNING, launcher="local")
    paths = RunPaths(root / "trial_00001")
    write_status(paths, status.with_changes(owner_host="node-that-is-gone", owner_pid=7))
    clock = PlayedTime()
    for module in (tuner_life, life, local_runner):
        monkeypatch.setattr(module, "time", clock)
    runner = LocalRunner(lambda trial_id, config: None, lambda name: root / name)  # type: ignore[arg-type,return-value]
    trials = read_record(ledger.paths).trials.values()
    with held(ledger.paths, meanwhile=lambda: runner.glance(trials)):
        runner.watch([trial for trial in trials if not trial.state.is_final])
    assert not runner.attach(read_record(ledger.paths).trials["trial_00001"])
    assert 60 <= clock.now < 70


def watch_beside(paths: SweepPaths, clock: PlayedTime) -> None:
    """Look at a sweep every 15 seconds, as who follows its trials does."""
    watch = tuner_life.TunerWatch(paths, longest_gap_s=30.0)
    while find_claim(RunPaths(paths.root)) is not None:
        watch.check()
        clock.sleep(15.0)


def test_who_follows_a_sweep_notices_that_its_tuner_died_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = SweepPaths(root=tmp_path)
    claim = claim_from_elsewhere(tmp_path)
    clock = PlayedTime(at_sleep=lambda: clock.now > 200 or paths.alive.write_text(f"a {clock.now}"))
    monkeypatch.setattr(tuner_life, "time", clock)
    with pytest.raises(RunStoppedError) as caught:
        watch_beside(paths, clock)
    assert 255 <= clock.now <= 270, "a minute after the last sign"
    said = str(caught.value)
    assert f"process 7 on node-that-is-gone, which ran the sweep {tmp_path}, has shown no" in said
    assert f"Tuner.restore({str(tmp_path)!r}, trainable).fit()" in said
    # Another tuner takes it over, and ends.
    clock.now, clock.at_sleep = 0.0, lambda: clock.now < 50 or (claim / "owner").write_text("")
    watch_beside(paths, clock)
    assert clock.now == 60


@pytest.mark.parametrize(("age_s", "is_silent"), [(3.0, False), (60.0, False), (754.0, True)])
def test_a_look_at_a_sweep_says_for_how_long_its_tuner_elsewhere_is_silent(
    tmp_path: Path, age_s: float, is_silent: bool
) -> None:
    fit(tmp_path)
    root = tmp_path / "s"
    claim = claim_from_elsewhere(root)
    when = time.time() - age_s
    os.utime(SweepPaths(root=root).alive, (when, when))
    silence = "its tuner, process 7 on node-that-is-gone, has shown no sign of life for 12:3"
    said = CliRunner().invoke(app, ["tune", "status", str(root)]).stdout
    listed = CliRunner().invoke(app, ["list", str(tmp_path)]).stdout
    assert "s: running, 1 trial" in said
    assert (silence in said) == is_silent
    assert (silence in listed) == is_silent
    goes_on = f"If it is gone, go on with: Tuner.restore({str(root)!r}, trainable).fit()"
    assert (goes_on in said) == is_silent
    # One that has ended is silent, too.
    (claim / "owner").unlink()
    claim.rmdir()
    said = CliRunner().invoke(app, ["tune", "status", str(root)]).stdout
    assert "s: ended" in said
    assert "no sign of life" not in said


def test_a_tuner_whose_job_is_over_is_gone_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim_from_elsewhere(tmp_path, job_id="77", restarts=0, cluster="c")
    monkeypatch.setenv("SLURM_CLUSTER_NAME", "c")
    asked: list[str] = []

    def ask(job_id: str) -> bool:
        asked.append(job_id)
        return len(asked) < 2

    monkeypatch.setattr(tuner_life, "job_is_alive", ask)
    watch = tuner_life.TunerWatch(SweepPaths(root=tmp_path), longest_gap_s=30.0)
    watch.check()
    watch.check()
    assert asked == ["77"], "Slurm is asked once, and not again and again"
    again = tuner_life.TunerWatch(SweepPaths(root=tmp_path), longest_gap_s=30.0)
    with pytest.raises(RunStoppedError, match="was in a job that is over"):
        again.check()


def test_a_sweep_whose_tuner_was_in_a_job_that_is_over_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, clock = SweepPaths(root=tmp_path), PlayedTime()
    SweepLedger(paths=paths).append("sweep-started", seed=0)
    claim_from_elsewhere(tmp_path, job_id="77", restarts=0, cluster="c")
    monkeypatch.setenv("SLURM_CLUSTER_NAME", "c")
    monkeypatch.setattr(tuner_life, "time", clock)
    monkeypatch.setattr(place, "_LEFT", tuner_life.LeftSweeps())
    answers: list[bool | None] = [True, None]

    def ask(job_id: str) -> bool | None:
        assert job_id == "77"
        if clock.now < 10:
            raise LaunchError("the controller does not answer")
        return answers.pop(0)

    monkeypatch.setattr(tuner_life, "job_is_alive", ask)
    seen = []
    for _ in range(20):
        seen.append(find_state(paths, read_record(paths)))
        clock.sleep(10)
    # Slurm is asked when it has been silent for a minute, and again a minute later.
    assert seen == [*12 * ["running"], *8 * ["interrupted"]]
    assert not answers
