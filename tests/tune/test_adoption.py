"""What a restored sweep makes of trials that were interrupted after a report that none has seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from hpctrain.errors import DamagedFileError
from hpctrain.tune.adoption import Replayed, replay, settle
from hpctrain.tune.learners import Learners
from hpctrain.tune.metric_check import MetricCheck
from hpctrain.tune.runner import Report
from hpctrain.tune.schedulers import ASHAScheduler, FIFOScheduler
from hpctrain.tune.trial import Trial, TrialEvent, TrialState
from tests.tune.played import FakeRunner


@pytest.mark.parametrize(
    ("state", "decision", "after", "becomes", "reason"),
    [
        (TrialState.PENDING, "STOP", 5, TrialState.TERMINATED, "stopped by the scheduler after "),
        (TrialState.PENDING, "PAUSE", None, TrialState.PAUSED, ""),
        (TrialState.PENDING, "CONTINUE", None, TrialState.PENDING, ""),
        (TrialState.PENDING, None, None, TrialState.PENDING, ""),
        # What became of these was decided.
        (TrialState.PAUSED, "STOP", 5, TrialState.PAUSED, ""),
    ],
)
def test_a_trial_that_waits_is_where_the_scheduler_says(
    state: TrialState, decision: str | None, after: int | None, becomes: TrialState, reason: str
) -> None:
    trial = Trial(trial_id="trial_00000", config={}, state=state, reports=5)
    said = {} if decision is None else {trial.trial_id: decision}
    stops = {} if after is None else {trial.trial_id: after}
    reasons = []

    def end(trial: Trial, reason: str, *, was_stopped: bool) -> None:
        assert was_stopped
        reasons.append(reason)
        trial.apply(TrialEvent.ENDED)

    settle(
        [trial],
        Replayed(decisions=said, stops=stops, exploits=(), histories={}),
        change=lambda trial, event: trial.apply(event),
        end=end,
    )
    assert trial.state is becomes
    assert reasons == ([f"{reason}report 5"] if reason else [])


def reports_of(*times_and_values: tuple[float, float]) -> list[Report]:
    return [
        Report(number=number, time=at, metrics={"m": value, "training_iteration": number})
        for number, (at, value) in enumerate(times_and_values, start=1)
    ]


def replayed(
    state: TrialState, worse: list[Report], better: list[Report]
) -> tuple[Replayed, list[int]]:
    """Return what ASHA says, and the iterations of the worse trial that it was sent."""
    seen = []

    class Noting(ASHAScheduler):
        def on_result(self, trial_id: str, metrics: Mapping[str, Any]) -> Any:
            if trial_id == "worse":
                seen.append(metrics["training_iteration"])
            return super().on_result(trial_id, metrics)

    asha = Noting(metric="m", mode="max", max_t=100, grace_period=1, reduction_factor=4)
    trials = {name: Trial(trial_id=name, config={}, state=state) for name in ("worse", "better")}
    runner = FakeRunner(made={"worse": worse, "better": better})
    return replay(trials, runner, Learners(asha, None)), seen


def test_what_an_interrupted_trial_was_let_go_on_after_does_not_end_it_later() -> None:
    # By the clock of its node the better one was first. The tuner saw the worse one first.
    worse = reports_of((2.0, 1.0), (3.0, 1.0), (4.0, 1.0))
    said, seen = replayed(TrialState.PENDING, worse, reports_of((1.0, 2.0)))
    assert said.stops == {}
    assert said.decisions["worse"] == "CONTINUE"
    assert seen == [1, 2, 3], "what it reported later is sent"


@pytest.mark.parametrize("state", [TrialState.PENDING, TrialState.RUNNING])
def test_a_stop_after_the_last_report_of_an_interrupted_trial_counts(state: TrialState) -> None:
    said, _ = replayed(state, reports_of((2.0, 1.0)), reports_of((1.0, 2.0)))
    assert said.stops == {"worse": 1}


def test_a_run_that_went_on_without_a_tuner_is_to_stop_where_the_scheduler_says() -> None:
    worse = reports_of((2.0, 1.0), (3.0, 1.0), (4.0, 1.0))
    said, seen = replayed(TrialState.RUNNING, worse, reports_of((1.0, 2.0)))
    assert said.stops == {"worse": 1}
    assert seen == [1]


@pytest.mark.parametrize(
    "state", [TrialState.TERMINATED, TrialState.PAUSED, TrialState.STOPPING, TrialState.ERROR]
)
def test_a_trial_that_has_stopped_was_let_go_on_after_all_reports_but_its_last(
    state: TrialState,
) -> None:
    worse = reports_of((2.0, 1.0), (3.0, 1.0), (4.0, 1.0))
    said, seen = replayed(state, worse, reports_of((1.0, 2.0)))
    assert said.stops == {}
    assert seen == [1, 2, 3]


@pytest.mark.parametrize(
    "times", [(2.0, 9.0, 5.0), (9.0, 2.0, 5.0), (9.0, 5.0, 2.0)], ids="{0[0]}-{0[1]}-{0[2]}".format
)
def test_a_clock_that_was_set_back_changes_neither_the_order_of_reports_nor_the_end(
    times: tuple[float, float, float],
) -> None:
    worse = reports_of(*((at, 1.0) for at in times))
    said, seen = replayed(TrialState.TERMINATED, worse, reports_of((1.0, 2.0)))
    assert said.stops == {}
    assert seen == [1, 2, 3]


def test_reports_after_a_refused_first_one_are_withheld_until_one_has_the_metric() -> None:
    trial = Trial(trial_id="trial_00000", config={}, state=TrialState.ERROR)
    lacking = [Report(number=n, time=n, metrics={"training_iteration": n}) for n in (1, 2)]
    mended = Report(number=3, time=3, metrics={"training_iteration": 3, "m": 1.0})
    seen = []

    class Noting(ASHAScheduler):
        def on_result(self, trial_id: str, metrics: Mapping[str, Any]) -> Any:
            seen.append(metrics["training_iteration"])
            return super().on_result(trial_id, metrics)

    runner = FakeRunner(made={trial.trial_id: [*lacking, mended]})
    learners = Learners(Noting(metric="m", mode="max"), None)
    replay({trial.trial_id: trial}, runner, learners, refuses=MetricCheck({"m": "it"}).refuses)
    assert seen == [3]


@dataclass
class _Reading(FakeRunner):
    """Notes of which trials all reports are read."""

    read: list[str] = field(default_factory=list)

    def history(self, trial: Trial) -> Sequence[Report]:
        self.read.append(trial.trial_id)
        return super().history(trial)


def restored(learners: Learners) -> tuple[Replayed, _Reading, dict[str, Trial]]:
    """Return what is read of trials as the ledger has them, which notes no attempt of a report.

    One has ended, the end of one lacks "m", one is at work, and one has failed.
    """
    reports = reports_of(*((float(at), 1.0) for at in range(1, 10)))
    mute = replace(reports[-1], metrics={"training_iteration": 9})
    runner = _Reading(made={**dict.fromkeys("acd", reports), "b": [*reports[:-1], mute]})
    states = {
        **dict.fromkeys("ab", TrialState.TERMINATED),
        "c": TrialState.RUNNING,
        "d": TrialState.ERROR,
    }
    trials = {
        name: Trial(trial_id=name, config={}, state=state, reports=9)
        for name, state in states.items()
    }
    for name, last in {"a": reports[-1], "b": mute, "d": reports[-1]}.items():
        trials[name].metrics = last.metrics
    check = MetricCheck({"m": "it"})
    said = replay(trials, runner, learners, refuses=check.refuses, lacks=check.lacks)
    return said, runner, trials


def test_reports_that_nothing_learns_from_are_not_read_once_a_trial_has_ended() -> None:
    said, runner, trials = restored(Learners(FIFOScheduler(), None))
    assert runner.read == ["b", "c", "d"], "whether b has reported the metric is not in the ledger"
    numbers = {name: [each.number for each in of] for name, of in said.histories.items()}
    assert numbers == {"a": [], "b": [1, 9], "c": [1, 9], "d": [1, 9]}
    assert {name: trial.reports for name, trial in trials.items()} == dict.fromkeys("abcd", 9)
    assert trials["d"].attempt == 1, "it may be tried again, and its reports are not new then"
    assert said.decisions["c"] == "CONTINUE"


@pytest.mark.parametrize(
    "learners",
    [
        Learners(ASHAScheduler(metric="m", mode="max"), None),
        Learners(type("Own", (FIFOScheduler,), {})(), None),
    ],
    ids=["asha", "own"],
)
def test_what_learns_is_sent_all_reports_again(learners: Learners) -> None:
    said, runner, _ = restored(learners)
    assert sorted(runner.read) == ["a", "b", "c", "d"]
    assert [len(reports) for reports in said.histories.values()] == [9, 9, 9, 9]


class _Damaged(FakeRunner):
    def history(self, trial: Trial) -> Sequence[Report]:
        raise DamagedFileError("metrics.jsonl is no file")


@pytest.mark.parametrize("scheduler", [FIFOScheduler(), ASHAScheduler(metric="m", mode="max")])
def test_damaged_reports_of_a_failed_trial_do_not_stop_the_others(
    scheduler: FIFOScheduler, capsys: pytest.CaptureFixture[str]
) -> None:
    trials = {"a": Trial(trial_id="a", config={}, state=TrialState.ERROR, reports=3)}
    said = replay(trials, _Damaged(), Learners(scheduler, None))
    assert said.histories == {"a": []}
    assert "the reports of a, which has failed, are left out: metrics" in capsys.readouterr().err
