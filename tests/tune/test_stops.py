"""How long a sweep that stops waits for its trials, played by a fake runner."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from hpctrain import ConfigError, RunStoppedError
from hpctrain.execute.process import process_start_time
from hpctrain.launch import cancel
from hpctrain.own_time import Deadline
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import read_status, write_status
from hpctrain.tune.interruptions import Interruptions
from hpctrain.tune.ledger import SweepPaths, read_record
from hpctrain.tune.local_runner import LocalRunner
from hpctrain.tune.stops import StopTimes
from hpctrain.tune.sweep import Sweep
from hpctrain.tune.trial import Trial, TrialState
from tests.tune.played import FakeRunner, Script, make_sweep, running, states

PATIENCE_S = 100.0


@pytest.mark.parametrize(
    ("left_s", "patience_s"),
    [(3600, 100), (120, 100), (100, 80), (40, 20), (16, 8), (8, 4)],
)
def test_trials_are_ended_and_given_up_before_the_job_ends(
    left_s: float, patience_s: float
) -> None:
    times = StopTimes.of(PATIENCE_S, left_s)
    assert times.patience_s == patience_s
    assert times.patience_s <= times.give_up_s <= left_s


@pytest.mark.parametrize("left_s", [3, 0, -9])
def test_trials_have_some_seconds_where_the_job_should_have_ended(left_s: float) -> None:
    assert StopTimes.of(PATIENCE_S, left_s) == StopTimes(patience_s=4, give_up_s=6)


def test_without_an_end_of_the_job_a_trial_that_was_ended_has_as_long_again() -> None:
    assert StopTimes.of(PATIENCE_S) == StopTimes(patience_s=PATIENCE_S, give_up_s=2 * PATIENCE_S)


def leaving(runner: FakeRunner, root: Path, *, job_ends: float) -> Sweep:
    """Return a sweep that is to leave its job from the third moment on."""
    sweep = make_sweep(runner, root, stop_patience_s=PATIENCE_S)
    sweep._interruptions = Interruptions(
        why_job_ends=lambda: "the time limit of job 7 ends" if runner.now >= 3 else "",
        stop_times=lambda patience_s: StopTimes.of(patience_s, job_ends - runner.now),
    )
    return sweep


def test_a_trial_that_makes_no_report_is_ended_before_its_job_and_goes_on_later(
    tmp_path: Path,
) -> None:
    slow = Script(values=[1.0], hangs=True, ignores_stop=True)
    runner = FakeRunner({"trial_00001": slow})
    with pytest.raises(RunStoppedError, match="time limit of job 7"):
        leaving(runner, tmp_path, job_ends=23).run()
    assert runner.ended == ["trial_00001"]
    # Of the 20 seconds that were left it had 10.
    assert 13 <= runner.now < 18
    runner.scripts, runner.ended, runner.asked = {}, [], []
    again = make_sweep(runner, tmp_path)
    again.adopt(read_record(SweepPaths(root=tmp_path)).trials)
    again.run()
    assert states(again) == 4 * ["TERMINATED"]


def test_where_the_end_of_the_job_has_passed_trials_are_ended_and_the_ledger_says_so(
    tmp_path: Path,
) -> None:
    slow = Script(values=[1.0], hangs=True, ignores_stop=True)
    runner = FakeRunner({"trial_00000": slow, "trial_00001": slow})
    with pytest.raises(RunStoppedError, match="time limit of job 7"):
        leaving(runner, tmp_path, job_ends=-100).run()
    assert runner.ended == ["trial_00000", "trial_00001"]
    trials = read_record(SweepPaths(root=tmp_path)).trials.values()
    assert {trial.state for trial in trials} == {TrialState.PENDING}


def test_one_that_cannot_be_ended_is_given_up_before_its_job_ends(tmp_path: Path) -> None:
    runner = FakeRunner({"trial_00000": Script(values=[1.0], hangs=True, ignores_stop=True)})
    asked: list[str] = []
    runner.end = lambda trials, **_: asked.extend(t.trial_id for t in trials)  # type: ignore[method-assign]
    with pytest.raises(RunStoppedError):
        leaving(runner, tmp_path, job_ends=23).run()
    assert asked == ["trial_00000"]
    assert runner.now < 23


class Slow(FakeRunner):
    """Each end of trials takes all the time that it may."""

    def end(self, trials: Sequence[Trial], *, patience_s: float) -> None:
        super().end(trials, patience_s=patience_s)
        self.now += patience_s


@pytest.mark.parametrize("is_urgent", [False, True])
def test_several_that_hang_are_ended_together_before_their_job_ends(
    tmp_path: Path, is_urgent: bool
) -> None:
    names = [f"trial_{i:05}" for i in range(5)]
    slow = Script(values=[1.0], hangs=True, ignores_stop=True)
    runner = Slow(dict.fromkeys(names, slow), capacity=5)
    sweep = make_sweep(runner, tmp_path, num_samples=5, stop_patience_s=PATIENCE_S)
    sweep._interruptions = Interruptions(
        why_job_ends=lambda: "the time limit of job 7 ends" if runner.now >= 3 else "",
        stop_times=lambda patience_s: StopTimes.of(patience_s, 123 - runner.now),
        is_urgent=lambda: is_urgent,
    )
    with pytest.raises(RunStoppedError):
        sweep.run()
    assert runner.ended == names
    assert runner.now < 123


def hang(pid_file: Path, run: Path) -> subprocess.Popen[bytes]:
    """Start what has a run directory open, and stays some time after SIGTERM."""
    code = (
        "import os, pathlib, signal, sys, time\n"
        "os.open(sys.argv[2], os.O_RDONLY)\n"
        "def notice(*_):\n    pathlib.Path(sys.argv[1] + '.told').touch()\n"
        "signal.signal(signal.SIGTERM, notice)\n"
        "pathlib.Path(sys.argv[1]).touch()\n"
        "told = [pathlib.Path(p) for p in sys.argv[3:]]\n"
        "while not all(p.exists() for p in told): time.sleep(0.01)\n"
    )
    others = [str(pid_file.with_name(f"{i}.told")) for i in range(3)]
    return subprocess.Popen([sys.executable, "-c", code, str(pid_file), str(run), *others])


def test_no_executor_is_waited_for_before_all_were_sent_a_signal(tmp_path: Path) -> None:
    """Each of them ends only once all have got theirs."""
    (tmp_path / "tune.jsonl").touch()
    runner = LocalRunner(lambda trial_id, config: None, lambda name: tmp_path / name)  # type: ignore[arg-type,return-value]
    trials = [Trial(trial_id=f"trial_{i:05}", config={}) for i in range(3)]
    processes = []
    try:
        for i, trial in enumerate(trials):
            paths = RunPaths(tmp_path / trial.trial_id)
            paths.root.mkdir()
            processes.append(hang(tmp_path / str(i), paths.root))
            running(paths, pid=processes[-1].pid)
            status = read_status(paths)
            assert status is not None
            start = process_start_time(processes[-1].pid)
            assert start is not None
            write_status(paths, replace(status, owner_start=start))
            # The parent of an executor takes note of its end.
            threading.Thread(target=processes[-1].wait, daemon=True).start()
        while not all((tmp_path / str(i)).exists() for i in range(3)):
            assert all(process.poll() is None for process in processes)
            time.sleep(0.01)
        runner.end(trials, patience_s=30.0)
        for trial in trials:
            status = read_status(RunPaths(tmp_path / trial.trial_id))
            assert status is not None
            assert status.state is RunState.STOPPED
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_executors_that_stay_share_the_time_that_they_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tune.jsonl").touch()
    runner = LocalRunner(lambda trial_id, config: None, lambda name: tmp_path / name)  # type: ignore[arg-type,return-value]
    trials = [Trial(trial_id=f"trial_{i:05}", config={}) for i in range(3)]
    now, waits = [0.0], []

    def wait(paths: RunPaths, status: object, *, was_there: bool, patience_s: float) -> str:
        waits.append(patience_s)
        now[0] += patience_s
        raise ConfigError("it still runs")

    monkeypatch.setattr(cancel, "signal_process", lambda *_: True)
    monkeypatch.setattr(cancel, "await_process", wait)
    monkeypatch.setattr(cancel, "Deadline", partial(Deadline, clock=lambda: now[0]))
    for trial in trials:
        running(RunPaths(tmp_path / trial.trial_id))
    runner.end(trials, patience_s=30.0)
    assert waits == [30.0, 0.0, 0.0]
