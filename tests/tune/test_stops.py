"""How long a sweep that stops waits for its trials, played by a fake runner."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpctrain import RunStoppedError
from hpctrain.tune.ledger import SweepPaths, read_record
from hpctrain.tune.stops import StopTimes
from hpctrain.tune.sweep import Sweep
from hpctrain.tune.trial import TrialState
from tests.tune.played import FakeRunner, Script, make_sweep, states

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
    sweep._why_leave = lambda: "the time limit of job 7 ends" if runner.now >= 3 else ""
    sweep._stop_times = lambda patience_s: StopTimes.of(patience_s, job_ends - runner.now)
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
    asked = []
    runner.end = lambda trial: asked.append(trial.trial_id)  # type: ignore[method-assign]
    with pytest.raises(RunStoppedError):
        leaving(runner, tmp_path, job_ends=23).run()
    assert asked == ["trial_00000"]
    assert runner.now < 23
