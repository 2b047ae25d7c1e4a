"""What becomes of trials, and of their sweep, that do not report what is compared."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hpctrain import ConfigError
from hpctrain.tune.ledger import SweepPaths, read_record
from hpctrain.tune.metric_check import MetricCheck
from hpctrain.tune.runner import End, Look, Report
from hpctrain.tune.schedulers import ASHAScheduler
from hpctrain.tune.sweep import Sweep
from hpctrain.tune.sweep_rules import name_metrics
from hpctrain.tune.trial import Trial, TrialState
from hpctrain.tune.tune_config import TuneConfig
from tests.tune.played import FakeRunner, Script, make_sweep, states

NEEDS = {"m": "TuneConfig(metric=...)"}
LONG = Script([1.0] * 9)


def sweep_of(runner: FakeRunner, root: Path, **options: Any) -> Sweep:
    return make_sweep(runner, root, metrics=NEEDS, **options)


def test_a_trial_without_the_metric_fails_alone_where_others_have_reported_it(
    tmp_path: Path,
) -> None:
    scripts = {"trial_00000": LONG, "trial_00002": Script(calls="diverged", hangs=True)}
    runner = FakeRunner(scripts)
    sweep = sweep_of(
        runner, tmp_path, num_samples=6, scheduler=ASHAScheduler(metric="m", mode="min")
    )
    sweep.run()
    assert states(sweep) == [*2 * ["TERMINATED"], "ERROR", *3 * ["TERMINATED"]]
    refused = sweep.trials["trial_00002"]
    assert refused.reports == 1
    assert refused.metrics["diverged"] == 1.0
    assert refused.reason.startswith(
        "trial_00002 reported no 'm', which TuneConfig(metric=...) names. The metrics are diverged"
    )
    assert "hpctrain.report({'m': None})" in refused.reason
    assert runner.asked == ["trial_00002"]
    assert "trial_00002" not in [name for name, _ in runner.let_on], "it does not go on"


def test_a_trial_without_the_metric_that_runs_on_keeps_its_slot_until_it_has_stopped(
    tmp_path: Path,
) -> None:
    hangs = Script(calls="other", hangs=True, ignores_stop=True)
    runner = FakeRunner({"trial_00000": LONG, "trial_00001": hangs})
    sweep = sweep_of(runner, tmp_path)
    sweep.run()
    assert states(sweep) == ["TERMINATED", "ERROR", "TERMINATED", "TERMINATED"]
    assert runner.ended == ["trial_00001"]
    assert runner.most_at_work == 2


def test_what_a_refused_trial_reports_later_is_not_heard(tmp_path: Path) -> None:
    late = Script([1.0, 2.0, 3.0], calls=("epoch", "m", "m"), ignores_stop=True)
    sweep = sweep_of(FakeRunner({"trial_00000": LONG, "trial_00001": late}), tmp_path)
    sweep.run()
    assert states(sweep)[1] == "ERROR"


def test_a_sweep_of_which_no_trial_has_reported_the_metric_ends_with_true_states(
    tmp_path: Path,
) -> None:
    scripts = {
        "trial_00000": Script([], hangs=True),
        "trial_00001": Script(calls="mm", hangs=True),
    }
    runner = FakeRunner(scripts)
    sweep = sweep_of(runner, tmp_path)
    with pytest.raises(ConfigError, match=r"01 reported no 'm'.* mean 'mm'.*No trial has"):
        sweep.run()
    assert states(sweep) == ["PENDING", "ERROR"]
    assert not runner.at_work
    # With a mended function the one that failed begins anew, and the other goes on.
    runner.scripts, runner.asked = {}, []
    restored = sweep_of(runner, tmp_path)
    restored.adopt(read_record(SweepPaths(root=tmp_path)).trials)
    restored.retry(restored.trials["trial_00001"], anew=True)
    restored.run()
    assert states(restored) == 4 * ["TERMINATED"]


def test_trials_that_report_nothing_end_the_sweep_with_the_first(tmp_path: Path) -> None:
    scripts = {f"trial_{number:05d}": Script([]) for number in range(4)}
    sweep = sweep_of(FakeRunner(scripts, capacity=1), tmp_path)
    message = r"trial_00000 finished without a report, and so without 'm', which TuneConfig"
    with pytest.raises(ConfigError, match=message):
        sweep.run()
    assert states(sweep) == ["ERROR"]


def test_a_trial_that_reports_nothing_fails_alone_where_others_have_reported(
    tmp_path: Path,
) -> None:
    sweep = sweep_of(FakeRunner({"trial_00001": Script([])}, capacity=1), tmp_path)
    sweep.run()
    assert states(sweep) == ["TERMINATED", "ERROR", "TERMINATED", "TERMINATED"]
    assert sweep.trials["trial_00001"].reason.startswith("trial_00001 finished without a report")


def test_without_a_metric_a_trial_may_report_nothing(tmp_path: Path) -> None:
    sweep = make_sweep(FakeRunner({"trial_00001": Script([])}), tmp_path)
    sweep.run()
    assert states(sweep) == 4 * ["TERMINATED"]


def test_what_hpctrain_adds_to_each_report_needs_no_trial_to_report_it() -> None:
    config = TuneConfig(metric="loss", mode="min")
    assert name_metrics(config, ASHAScheduler()) == {"loss": "TuneConfig(metric=...)"}


class Strict:
    """A search with the three methods that are needed, which reads what it is sent."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, float]] = []

    def suggest(self, trial_id: str) -> dict[str, Any]:
        return {"x": 1}

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        self.seen.append((trial_id, result["m"]))

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        """Nothing is learned."""


def test_a_search_is_not_sent_a_refused_report_by_a_restore_either(tmp_path: Path) -> None:
    scripts = {"trial_00000": LONG, "trial_00001": Script(calls="other", hangs=True)}
    runner, search = FakeRunner(scripts), Strict()
    sweep = sweep_of(runner, tmp_path, num_samples=2, search=search)
    sweep.run()
    assert states(sweep) == ["TERMINATED", "ERROR"]
    again = Strict()
    restored = sweep_of(runner, tmp_path, num_samples=2, search=again)
    restored.adopt(read_record(SweepPaths(root=tmp_path)).trials)
    assert again.seen == search.seen == 9 * [("trial_00000", 1.0)]


OTHER = Script([1.0] * 9, calls="other")


class Orphaning(FakeRunner):
    """The executor of a trial is killed once it has been asked to stop."""

    def look(self, trial: Trial) -> Look:
        if trial.trial_id not in self.asked:
            return super().look(trial)
        self.asked.remove(trial.trial_id)
        del self.at_work[trial.trial_id]
        return Look(end=End(failed=True, was_stopped=False, is_orphaned=True, reason="killed"))


def test_a_refused_trial_whose_executor_is_killed_does_not_go_on(tmp_path: Path) -> None:
    runner = Orphaning({"trial_00000": LONG, "trial_00001": OTHER})
    sweep = sweep_of(runner, tmp_path)
    sweep.run()
    assert states(sweep) == ["TERMINATED", "ERROR", "TERMINATED", "TERMINATED"]
    assert runner.started.count("trial_00001") == 1
    assert sweep.trials["trial_00001"].reason.startswith("trial_00001 reported no 'm', which")


class TunerKilledError(Exception):
    """Of a tuner that leaves everything as it is."""


class OutlivesTuner(FakeRunner):
    """The tuner dies when it asks a trial to stop, before it has."""

    dies: bool = True

    def stop(self, trial: Trial) -> None:
        if self.dies:
            self.dies = False
            raise TunerKilledError
        super().stop(trial)


@pytest.mark.parametrize("survives", [True, False])
def test_a_trial_that_a_killed_tuner_has_refused_is_refused_by_the_next_one(
    tmp_path: Path, survives: bool
) -> None:
    runner = OutlivesTuner({"trial_00000": LONG, "trial_00001": OTHER})
    first = sweep_of(runner, tmp_path, num_samples=2)
    first._interrupt = lambda: None  # type: ignore[method-assign]
    with pytest.raises(TunerKilledError):
        first.run()
    assert states(first) == ["RUNNING", "RUNNING"]
    if not survives:
        del runner.at_work["trial_00001"]
    second = sweep_of(runner, tmp_path, num_samples=2)
    second.adopt(read_record(SweepPaths(root=tmp_path)).trials)
    second.run()
    assert states(second) == ["TERMINATED", "ERROR"]
    assert second.trials["trial_00001"].reports == 1
    assert second.trials["trial_00001"].reason.startswith("trial_00001 reported no 'm', which")
    assert runner.started == ["trial_00000", "trial_00001"]


def test_what_was_reported_before_a_restore_counts(tmp_path: Path) -> None:
    runner = FakeRunner({"trial_00000": Script([1.0, 2.0], calls=("m", "other"), hangs=True)})
    runner.interrupt_at = 4
    first = sweep_of(runner, tmp_path, num_samples=2)
    with pytest.raises(KeyboardInterrupt):
        first.run()
    runner.scripts, runner.asked = {"trial_00000": Script([])}, []
    second = sweep_of(runner, tmp_path, num_samples=2)
    second.adopt(read_record(SweepPaths(root=tmp_path)).trials)
    second.run()
    assert states(second) == 2 * ["TERMINATED"]


def test_a_retried_trial_that_is_without_the_metric_so_far_is_not_refused_again() -> None:
    trial = Trial(trial_id="trial_00000", config={}, state=TrialState.RUNNING, reports=1)
    reports = {trial.trial_id: [Report(number=1, time=1.0, metrics={"other": 1.0})]}
    check = MetricCheck({"m": "the metric"})
    check.recall({trial.trial_id: trial}, reports, unjudged=())
    assert not check.has_refused(trial)
    check.recall({trial.trial_id: trial}, reports, unjudged=[trial.trial_id])
    assert check.has_refused(trial)


def test_what_the_ledger_says_of_a_trial_counts_where_its_directory_was_removed() -> None:
    gone = Trial(
        trial_id="trial_00000",
        config={},
        state=TrialState.TERMINATED,
        reports=3,
        metrics={"m": 1.0},
    )
    late = Trial(trial_id="trial_00001", config={}, state=TrialState.RUNNING)
    check = MetricCheck({"m": "the metric"})
    check.recall({gone.trial_id: gone}, {gone.trial_id: []}, unjudged=())
    report = Report(number=1, time=1.0, metrics={"other": 1.0})
    assert check.note(late, report, is_first=True), "it fails alone"


def test_what_a_trial_reported_before_it_begins_anew_does_not_count() -> None:
    trial = Trial(
        trial_id="trial_00000",
        config={},
        state=TrialState.ERROR,
        reports=3,
        metrics={"m": 1.0},
    )
    trial.begin_anew()
    check = MetricCheck({"m": "the metric"})
    check.recall({trial.trial_id: trial}, {trial.trial_id: []}, unjudged=())
    report = Report(number=1, time=1.0, metrics={"other": 1.0})
    with pytest.raises(ConfigError, match="No trial has reported it so far"):
        check.note(trial, report, is_first=True)
