"""The loop of a sweep, with trials that are played by a fake runner."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpctrain import ConfigError, LaunchError, TrainingFailedError, tune
from hpctrain.rundir.reading import read_lines
from hpctrain.tune.ledger import SweepPaths, fold, is_event, read_record
from hpctrain.tune.runner import End, Look, NotNowError
from hpctrain.tune.schedulers import ASHAScheduler, FIFOScheduler
from hpctrain.tune.search import Searcher
from hpctrain.tune.source import SearchSource
from hpctrain.tune.trial import TRANSITIONS, Trial, TrialEvent, TrialState, next_state
from tests.tune.played import FakeRunner, Script, make_sweep, states


def test_all_trials_run_and_no_more_at_once_than_fit(tmp_path: Path) -> None:
    runner = FakeRunner(capacity=3)
    sweep = make_sweep(runner, tmp_path, num_samples=7)
    sweep.run()
    assert states(sweep) == 7 * ["TERMINATED"]
    assert runner.most_at_work == 3
    assert len(set(runner.started)) == 7


def test_a_trial_that_cannot_begin_now_waits_and_has_not_failed(tmp_path: Path) -> None:
    runner = FakeRunner(capacity=3, begins_at={"trial_00000": 2.0, "trial_00002": 8.0})
    sweep = make_sweep(runner, tmp_path, fail_fast=True)
    sweep.run()
    assert states(sweep) == 4 * ["TERMINATED"]
    assert runner.now > 8
    assert sorted(runner.started) == [f"trial_0000{number}" for number in range(4)], "each once"
    events = read_lines(SweepPaths(root=tmp_path).events, is_event)
    put_off = [event for event in events if event["event"] == "trial-interrupted"]
    assert {event["reason"] for event in put_off} == {"no more jobs now"}


def test_an_interrupt_that_leaves_trials_at_work_asks_none_to_stop(tmp_path: Path) -> None:
    scripts = {f"trial_0000{number}": Script(values=[1.0] * 6) for number in range(2)}
    runner = FakeRunner(scripts, interrupt_at=3)
    with pytest.raises(KeyboardInterrupt):
        make_sweep(runner, tmp_path, num_samples=2, ends_at_interrupt=False).run()
    assert not runner.asked
    assert len(runner.at_work) == 2
    sweep = make_sweep(runner, tmp_path, num_samples=2)
    sweep.adopt(read_record(SweepPaths(root=tmp_path)).trials)
    sweep.run()
    assert states(sweep) == 2 * ["TERMINATED"]
    assert len(runner.started) == 2, "no trial was begun twice"


def test_the_ledger_says_what_the_sweep_says_whatever_the_trials_do(
    each_example: Callable[[Callable[[Any], None]], None], tmp_path: Path
) -> None:
    def check(rng: np.random.Generator) -> None:
        root = tmp_path / str(rng.integers(2**60))
        root.mkdir()
        scripts = {
            f"trial_{i:05d}": Script(
                values=rng.normal(size=rng.integers(0, 5)).tolist(),
                fails="broken" if rng.random() < 0.2 else "",
                hangs=bool(rng.random() < 0.2),
                ignores_stop=bool(rng.random() < 0.3),
            )
            for i in range(6)
        }
        runner = FakeRunner(scripts, capacity=int(rng.integers(1, 4)))
        asha = ASHAScheduler(metric="m", mode="min", max_t=4, reduction_factor=2)
        sweep = make_sweep(runner, root, num_samples=6, scheduler=asha, time_budget_s=40)
        sweep.run()
        assert not runner.at_work, "nothing is left running"
        assert all(trial.state.is_final for trial in sweep.trials.values())
        record = read_record(SweepPaths(root=root))
        assert [t.state for t in record.trials.values()] == [t.state for t in sweep.trials.values()]
        for name, trial in record.trials.items():
            failed = scripts[name].fails and not scripts[name].hangs and trial.stopped_after is None
            assert (trial.state is TrialState.ERROR) == bool(failed)
            if trial.stopped_after is not None:
                assert trial.stopped_after <= len(scripts[name].values)

    each_example(check)


def test_a_sweep_that_is_killed_at_any_event_goes_on_to_the_same_end(
    each_example: Callable[[Callable[[Any], None]], None], tmp_path: Path
) -> None:
    """The tuner dies; runs may go on or die with it; then the sweep is restored."""

    def check(rng: np.random.Generator) -> None:
        root = tmp_path / str(rng.integers(2**60))
        root.mkdir()
        scripts = {
            f"trial_{i:05d}": Script(values=[1.0] * int(rng.integers(1, 6))) for i in range(5)
        }
        runner = FakeRunner(scripts)

        class KilledError(Exception):
            pass

        kill_at, real_wait = int(rng.integers(0, 12)), runner.wait

        def wait(timeout_s: float) -> None:
            real_wait(timeout_s)
            if runner.now > kill_at:
                raise KilledError

        first = make_sweep(runner, root, num_samples=5)
        runner.wait = wait  # type: ignore[method-assign]
        first._interrupt = lambda: None  # type: ignore[method-assign]
        try:
            first.run()
        except KilledError:
            pass
        for name in list(runner.at_work):
            if rng.random() < 0.5:
                del runner.at_work[name]
        finished = [n for n, t in first.trials.items() if t.state is TrialState.TERMINATED]
        runner.wait = real_wait  # type: ignore[method-assign]
        alive, runner.started = set(runner.at_work), []
        second = make_sweep(runner, root, num_samples=5)
        second.adopt(read_record(SweepPaths(root=root)).trials)
        second.run()
        assert states(second) == 5 * ["TERMINATED"]
        assert not set(runner.started) & set(finished), "what is finished does not run again"
        assert not set(runner.started) & alive, "what runs is attached to"
        assert len(runner.started) == len(set(runner.started))

    each_example(check)


def test_what_asha_has_seen_is_there_again_after_a_restore(tmp_path: Path) -> None:
    def asha() -> ASHAScheduler:
        return ASHAScheduler(metric="m", mode="min", max_t=9, grace_period=1, reduction_factor=3)

    runner = FakeRunner({"trial_00000": Script(values=[0.1] * 5)}, capacity=1)
    first = make_sweep(runner, tmp_path, num_samples=1, scheduler=asha())
    first.run()
    runner.scripts = {"trial_00001": Script(values=[0.9] * 5)}
    second = make_sweep(runner, tmp_path, num_samples=2, scheduler=asha())
    second.adopt(read_record(SweepPaths(root=tmp_path)).trials)
    second.run()
    assert second.trials["trial_00001"].stopped_after == 1, "it is worse than the first was"


def test_a_failed_trial_that_begins_anew_is_heard_from_its_first_report_on(tmp_path: Path) -> None:
    runner = FakeRunner({"trial_00000": Script(values=[1.0] * 3, fails="broken")})
    make_sweep(runner, tmp_path, num_samples=1).run()
    runner.scripts = {"trial_00000": Script(values=[1.0] * 2)}
    second = make_sweep(runner, tmp_path, num_samples=1)
    second.adopt(read_record(SweepPaths(root=tmp_path)).trials)
    second.retry(second.trials["trial_00000"], anew=True)
    assert read_record(SweepPaths(root=tmp_path)).trials["trial_00000"].reports == 0
    second.run()
    assert states(second) == ["TERMINATED"]
    assert second.trials["trial_00000"].reports == 2


def test_a_trial_that_stopped_after_its_tuner_died_ends_with_the_reason_of_the_stop(
    tmp_path: Path,
) -> None:
    class KilledError(Exception):
        pass

    class StopsAndDies(FakeRunner):
        def stop(self, trial: Trial) -> None:
            del self.at_work[trial.trial_id]
            raise KilledError

    def asha() -> ASHAScheduler:
        return ASHAScheduler(metric="m", mode="min", max_t=1)

    first = make_sweep(StopsAndDies(), tmp_path, num_samples=1, scheduler=asha())
    first._interrupt = lambda: None  # type: ignore[method-assign]
    with pytest.raises(KilledError):
        first.run()
    second = make_sweep(FakeRunner(), tmp_path, num_samples=1, scheduler=asha())
    second.adopt(read_record(SweepPaths(root=tmp_path)).trials)
    second.run()
    (trial,) = read_record(SweepPaths(root=tmp_path)).trials.values()
    assert (trial.state, trial.reason) == (
        TrialState.TERMINATED,
        "stopped by the scheduler after report 1",
    )
    lines = (tmp_path / "tune.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines].count("trial-ended") == 1


class DiesAfterReports(FakeRunner):
    """Its tuner dies once a trial has made so many reports, before it reads any of them."""

    reports: int = 1
    survives: bool = True
    """Whether the run does."""

    def look(self, trial: Trial) -> Look:
        if trial.trial_id == "trial_00001" and not self.made.get(trial.trial_id):
            for _ in range(self.reports):
                super().look(trial)
            if not self.survives:
                del self.at_work[trial.trial_id]
            raise TunerKilledError
        return super().look(trial)


class TunerKilledError(Exception):
    """Of a tuner that leaves everything as it is."""


@pytest.mark.parametrize("survives", [True, False])
@pytest.mark.parametrize("reports", [1, 3])
def test_what_a_scheduler_decides_on_reports_that_no_tuner_has_seen_takes_effect(
    tmp_path: Path, reports: int, survives: bool
) -> None:
    def asha() -> ASHAScheduler:
        return ASHAScheduler(metric="m", mode="min", max_t=9, grace_period=1, reduction_factor=3)

    scripts = {"trial_00000": Script(values=[0.1] * 9), "trial_00001": Script(values=[0.9] * 9)}
    runner = DiesAfterReports(scripts, capacity=1)
    runner.reports, runner.survives = reports, survives
    first = make_sweep(runner, tmp_path, num_samples=2, scheduler=asha())
    first._interrupt = lambda: None  # type: ignore[method-assign]
    with pytest.raises(TunerKilledError):
        first.run()
    second = make_sweep(runner, tmp_path, num_samples=2, scheduler=asha())
    second.adopt(read_record(SweepPaths(root=tmp_path)).trials)
    second.run()
    assert runner.started == ["trial_00000", "trial_00001"], "it does not begin again"
    trial = read_record(SweepPaths(root=tmp_path)).trials["trial_00001"]
    assert (trial.state, trial.stopped_after, trial.reason) == (
        TrialState.TERMINATED,
        1,
        "stopped by the scheduler after report 1",
    )
    assert trial.reports == reports, "what was reported counts all the same"


def test_a_trial_that_was_to_pause_when_its_run_died_waits_until_the_scheduler_chooses_it(
    tmp_path: Path,
) -> None:
    class Pauses(FIFOScheduler):
        def on_result(self, trial_id: str, metrics: Mapping[str, Any]) -> Any:
            return self.PAUSE

    runner = DiesAfterReports({"trial_00000": Script(values=())}, capacity=2)
    runner.survives = False
    first = make_sweep(runner, tmp_path, num_samples=2, scheduler=Pauses())
    first._interrupt = lambda: None  # type: ignore[method-assign]
    with pytest.raises(TunerKilledError):
        first.run()
    second = make_sweep(runner, tmp_path, num_samples=2, scheduler=Pauses())
    second.adopt(read_record(SweepPaths(root=tmp_path)).trials)
    assert second.trials["trial_00001"].state is TrialState.PAUSED


def test_a_large_trial_is_not_passed_by_small_ones_for_ever(tmp_path: Path) -> None:
    scripts = {f"trial_{i:05d}": Script(values=[1.0] * (i + 1)) for i in range(6)}
    runner = FakeRunner(scripts, capacity=2)
    space = {"cpus": tune.grid_search([1, 1, 2, 1, 1, 1])}
    sweep = make_sweep(runner, tmp_path, num_samples=1, space=space)
    sweep.run()
    assert runner.started == sorted(runner.started)


def test_a_metric_that_no_trial_reports_ends_the_sweep_and_says_which_there_are(
    tmp_path: Path,
) -> None:
    runner = FakeRunner({"trial_00001": Script(hangs=True)})
    sweep = make_sweep(runner, tmp_path, metrics={"mm": "TuneConfig"})
    with pytest.raises(ConfigError, match=r"reported no 'mm'.*The metrics are m, .*mean 'm'"):
        sweep.run()
    assert not runner.at_work


def test_the_first_failure_ends_all_if_it_is_to(tmp_path: Path) -> None:
    scripts = {"trial_00000": Script(fails="broken"), "trial_00001": Script(hangs=True)}
    sweep = make_sweep(FakeRunner(scripts), tmp_path, fail_fast=True)
    sweep.run()
    assert states(sweep) == ["ERROR", "TERMINATED"]
    (tmp_path / "raise").mkdir()
    sweep = make_sweep(FakeRunner(scripts), tmp_path / "raise", fail_fast="raise")
    with pytest.raises(TrainingFailedError, match="trial_00000: broken"):
        sweep.run()


def test_a_trial_that_cannot_begin_costs_no_other(tmp_path: Path) -> None:
    refuses = {"trial_00001": LaunchError("no room")}
    runner = FakeRunner(refuses=refuses)
    sweep = make_sweep(runner, tmp_path)
    sweep.run()
    assert states(sweep) == ["TERMINATED", "ERROR", "TERMINATED", "TERMINATED"]
    assert sweep.trials["trial_00001"].reason == "no room"


def test_a_request_that_is_wrong_from_the_first_trial_on_is_an_error(tmp_path: Path) -> None:
    runner = FakeRunner(refuses={"trial_00000": ConfigError("wrong")})
    with pytest.raises(ConfigError, match="wrong"):
        make_sweep(runner, tmp_path).run()


def test_the_time_budget_stops_trials_and_ends_those_that_do_not_stop(tmp_path: Path) -> None:
    scripts = {
        "trial_00000": Script(hangs=True),
        "trial_00001": Script(hangs=True, ignores_stop=True),
    }
    runner = FakeRunner(scripts)
    sweep = make_sweep(runner, tmp_path, time_budget_s=3)
    sweep.run()
    assert states(sweep) == ["TERMINATED", "TERMINATED"]
    assert runner.ended == ["trial_00001"]
    assert "time_budget_s=3 is over" in sweep.reason


def test_a_restored_sweep_has_what_is_left_of_its_time_budget(tmp_path: Path) -> None:
    runner = FakeRunner({"trial_00000": Script(hangs=True)})
    sweep = make_sweep(runner, tmp_path, num_samples=1, time_budget_s=10, spent_s=8)
    sweep.run()
    assert sweep.reason == "time_budget_s=10 is over"
    assert runner.now < 8, "it does not begin anew"


def test_a_sweep_whose_time_budget_is_spent_begins_nothing(tmp_path: Path) -> None:
    runner = FakeRunner()
    sweep = make_sweep(runner, tmp_path, time_budget_s=3, spent_s=3)
    sweep.run()
    assert (sweep.reason, runner.started) == ("time_budget_s=3 is over", [])


def test_the_ledger_says_for_how_long_a_sweep_ran_before_it_was_restored() -> None:
    def events(*of: tuple[str, float]) -> list[dict[str, Any]]:
        return [{"event": event, "time": time} for event, time in of]

    first = [*events(("sweep-started", 100.0), ("trial-added", 107.0))]
    first[1] |= {"trial": "trial_00000", "config": {}}
    record = fold(first)
    assert record is not None
    assert (record.earlier_s, record.last_s) == (0.0, 7.0)
    # The tuner lived for longer than its last event says.
    restored = {"event": "sweep-restored", "time": 500.0, "earlier_s": 30.0}
    record = fold([*first, restored, *events(("sweep-ended", 504.0))])
    assert record is not None
    assert (record.earlier_s, record.last_s) == (30.0, 4.0)
    del restored["earlier_s"]
    record = fold([*first, restored])
    assert record is not None
    assert (record.earlier_s, record.last_s) == (7.0, 0.0)


def test_ctrl_c_stops_all_and_a_restored_sweep_resumes_them(tmp_path: Path) -> None:
    scripts = {f"trial_{i:05d}": Script(values=[1.0] * 8) for i in range(3)}
    runner = FakeRunner(scripts, interrupt_at=3)
    sweep = make_sweep(runner, tmp_path, num_samples=3)
    with pytest.raises(KeyboardInterrupt):
        sweep.run()
    assert not runner.at_work
    assert states(sweep) == ["PENDING", "PENDING"]
    runner.asked.clear()
    second = make_sweep(runner, tmp_path, num_samples=3)
    second.adopt(read_record(SweepPaths(root=tmp_path)).trials)
    second.run()
    assert states(second) == 3 * ["TERMINATED"]


@dataclass
class Orphaning(FakeRunner):
    """The executor of one trial is killed at some looks, and another one is to go on."""

    victim: str = "trial_00001"
    deaths: int = 1

    def look(self, trial: Trial) -> Look:
        if trial.trial_id != self.victim or not self.deaths:
            return super().look(trial)
        self.deaths -= 1
        del self.at_work[trial.trial_id]
        return Look(end=End(failed=True, was_stopped=False, is_orphaned=True, reason="killed"))


def test_a_trial_whose_executor_is_killed_goes_on_with_another_one(tmp_path: Path) -> None:
    runner = Orphaning(deaths=2)
    sweep = make_sweep(runner, tmp_path, fail_fast=True)
    sweep.run()
    assert states(sweep) == 4 * ["TERMINATED"]
    assert runner.started.count("trial_00001") == 3
    assert len(runner.started) == 6, "no other one begins again"
    record = read_record(SweepPaths(root=tmp_path))
    assert [t.state for t in record.trials.values()] == [t.state for t in sweep.trials.values()]


def test_a_trial_that_is_to_stop_ends_when_its_executor_is_killed(tmp_path: Path) -> None:
    runner = Orphaning({"trial_00000": Script(fails="broken")}, capacity=2, deaths=1)
    look = runner.look

    def look_late(trial: Trial) -> Look:
        """Let the other one fail before."""
        is_early = trial.trial_id == runner.victim and runner.now < 3
        return Look() if is_early else look(trial)

    runner.look = look_late  # type: ignore[method-assign]
    sweep = make_sweep(runner, tmp_path, num_samples=2, fail_fast=True)
    sweep.run()
    assert states(sweep) == ["ERROR", "TERMINATED"]
    assert runner.started == ["trial_00000", "trial_00001"]


class BetweenJobs(FakeRunner):
    """The job of the second trial ends after a report, and Slurm takes no further one."""

    def start(self, trial: Trial) -> None:
        if trial.trial_id in self.made:
            raise NotNowError("no more jobs now")
        super().start(trial)

    def look(self, trial: Trial) -> Look:
        if trial.trial_id != "trial_00001" or not self.made.get(trial.trial_id):
            return super().look(trial)
        del self.at_work[trial.trial_id]
        return Look(end=End(failed=False, was_stopped=True, is_orphaned=True, reason="left"))


@pytest.mark.parametrize(
    ("script", "rules", "first"),
    [
        (Script(hangs=True), {"time_budget_s": 5}, "TERMINATED"),
        (Script(values=[1.0] * 4, fails="broken"), {"fail_fast": True}, "ERROR"),
    ],
)
def test_what_ends_a_sweep_ends_a_trial_that_waits_for_its_next_job(
    tmp_path: Path, script: Script, rules: Mapping[str, Any], first: str
) -> None:
    runner = BetweenJobs({"trial_00000": script}, capacity=3, begins_at={"trial_00002": math.inf})
    sweep = make_sweep(runner, tmp_path, num_samples=3, **rules)
    sweep.run()
    # The third has never begun, and a restored sweep may begin it.
    assert states(sweep) == [first, "TERMINATED", "PENDING"]
    assert sweep.trials["trial_00001"].reason == f"stopped: {sweep.reason}"
    record = read_record(SweepPaths(root=tmp_path))
    assert [trial.state.value for trial in record.trials.values()] == states(sweep)


class _Own(Searcher):
    """Proposes what it was not told before."""

    def __init__(self) -> None:
        super().__init__("m", "min")
        self.told: list[Any] = []
        self.waits = 0

    def suggest(self, trial_id: str) -> Any:
        if self.waits < 2:
            self.waits += 1
            return None if trial_id != "trial_00000" else {"x": 0}
        return {"x": len(self.told)} if len(self.told) < 3 else self.FINISHED

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        self.told.append(("result", trial_id, result["m"]))

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        self.told.append(("complete", trial_id, error))


def test_a_search_of_ones_own_proposes_waits_learns_and_finishes(tmp_path: Path) -> None:
    search = _Own()
    runner = FakeRunner({"trial_00001": Script(fails="broken")})
    sweep = make_sweep(runner, tmp_path, num_samples=50, search=search)
    sweep.run()
    assert states(sweep) == ["TERMINATED", "ERROR"]
    assert ("result", "trial_00000", 1.0) in search.told
    assert ("complete", "trial_00000", False) in search.told
    assert ("complete", "trial_00001", True) in search.told
    assert sweep.reason == "_Own has finished after 2 of 50 trials"


def test_what_was_drawn_before_the_sweep_is_not_proposed_twice() -> None:
    class Counting(_Own):
        def suggest(self, trial_id: str) -> Any:
            self.told.append(trial_id)
            return {} if len(self.told) == 1 else self.FINISHED

    source = SearchSource(search=Counting(), space={}, num_samples=3)
    assert source.draw("trial_00000") == source.next(0, "trial_00000") == {}
    assert source.draw("trial_00001") is None
    assert not source.is_done(1), "why it ends is asked by what takes the next one"
    assert source.next(1, "trial_00001") is None
    assert source.is_done(1)
    assert source.search.told == ["trial_00000", "trial_00001"]  # type: ignore[attr-defined]


class _Documented(Searcher):
    """Has the signature of the example in Ray Tune's documentation."""

    def __init__(self) -> None:
        super().__init__("m", "min")
        self.ends: dict[str, Any] = {}

    def suggest(self, trial_id: str) -> Any:
        return {"x": 1}

    def on_trial_complete(  # type: ignore[override]  # that example's differs from its base, too
        self, trial_id: str, result: Any, **kwargs: Any
    ) -> None:
        self.ends[trial_id] = result, kwargs


def test_a_search_as_ray_tune_documents_it_is_sent_results_and_errors(tmp_path: Path) -> None:
    search = _Documented()
    runner = FakeRunner({"trial_00001": Script(fails="broken")})
    make_sweep(runner, tmp_path, num_samples=2, search=search).run()
    assert search.ends["trial_00001"] == (None, {"error": True})
    result, kwargs = search.ends["trial_00000"]
    assert result["m"] == 1.0
    assert kwargs == {"error": False}


def test_a_search_that_never_proposes_ends_the_sweep(tmp_path: Path) -> None:
    search = _Own()
    search.suggest = lambda trial_id: None  # type: ignore[method-assign]
    sweep = make_sweep(FakeRunner(), tmp_path, search=search)
    sweep.run()
    assert not sweep.trials
    assert sweep.reason == (
        "_Own.suggest() returned None after 0 of 4 trials, while none was at work that it could "
        "wait for"
    )


def test_no_event_leads_out_of_an_end_but_a_retry() -> None:
    for state in TrialState:
        assert set(TRANSITIONS) == set(TrialState)
        for event in TrialEvent:
            if state.is_final and event is not TrialEvent.RETRY:
                assert next_state(state, event) is state


def test_a_ledger_that_is_torn_or_damaged_gives_what_is_whole(tmp_path: Path) -> None:
    sweep = make_sweep(FakeRunner(), tmp_path, num_samples=3)
    sweep.run()
    path = tmp_path / "tune.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    broken = [b"\x00\xff\n", b'{"event": 3}\n', b'{"event": "trial-added", "time": 1}\n', b"[]\n"]
    wrong = json.dumps({"event": "trial-ended", "time": 1.0, "trial": "unknown"}).encode() + b"\n"
    path.write_bytes(b"".join([*lines[:3], *broken, wrong, *lines[3:]]) + lines[-1][:9])
    record = read_record(SweepPaths(root=tmp_path))
    assert [t.state.value for t in record.trials.values()] == 3 * ["TERMINATED"]


@pytest.mark.parametrize("returned", ["stop", True, None, ["STOP"]])
def test_what_a_scheduler_returns_is_a_decision(tmp_path: Path, returned: Any) -> None:
    class Own(FIFOScheduler):
        def on_result(self, trial_id: str, metrics: Mapping[str, Any]) -> Any:
            return returned

    runner = FakeRunner()
    sweep = make_sweep(runner, tmp_path, scheduler=Own())
    with pytest.raises(ConfigError, match=r"Own\.on_result\(\) returned .* CONTINUE, STOP, PAUSE"):
        sweep.run()
    assert not runner.at_work


@pytest.mark.parametrize(
    ("name", "ours"), [("on_trial_result", "on_result"), ("choose_trial_to_run", "choose")]
)
def test_a_scheduler_that_was_written_for_ray_tune_is_refused(name: str, ours: str) -> None:
    with pytest.raises(ConfigError, match=rf"Own\.{name}\(\) .*Here it is {ours}\("):
        type("Own", (FIFOScheduler,), {name: lambda self, *rest: "STOP"})


@dataclass
class Blind(FakeRunner):
    """The nodes of its trials see no files, from the first of them on that is named."""

    blind: tuple[str, ...] = ()

    def look(self, trial: Trial) -> Look:
        if trial.trial_id not in self.blind or trial.trial_id in self.asked:
            return super().look(trial)
        del self.at_work[trial.trial_id]
        reason = "job 7 could not begin: node1 does not see the run directory /tmp/x."
        end = End(failed=True, was_stopped=False, is_for_all=True, reason=reason)
        # A runner that has just begun finds those of earlier attempts, too.
        return Look(reports=self.made.get(trial.trial_id, []), end=end)


def test_a_storage_that_no_node_sees_ends_the_sweep_with_the_first_trial(tmp_path: Path) -> None:
    runner = Blind({"trial_00000": Script(values=(), hangs=True)}, blind=("trial_00001",))
    sweep = make_sweep(runner, tmp_path, num_samples=6)
    with pytest.raises(LaunchError, match=r"trial_00001: job 7 .* /tmp/x. All trials would fail"):
        sweep.run()
    assert runner.started == ["trial_00000", "trial_00001"], "no more are begun"
    assert runner.asked == ["trial_00000"], "the other one is stopped"
    record = read_record(SweepPaths(root=tmp_path))
    # Once the storage is seen, the sweep goes on with them.
    assert [trial.state.value for trial in record.trials.values()] == ["PENDING", "PENDING"]
    assert record.ended is None


def test_a_restored_sweep_whose_nodes_all_lack_something_ends_like_a_new_one(
    tmp_path: Path,
) -> None:
    first = FakeRunner({"trial_00000": Script(hangs=True)}, interrupt_at=3)
    with pytest.raises(KeyboardInterrupt):
        make_sweep(first, tmp_path, num_samples=1, ends_at_interrupt=True).run()
    trials = read_record(SweepPaths(root=tmp_path)).trials
    assert [trial.reports for trial in trials.values()] == [1]
    sweep = make_sweep(Blind(made=first.made, blind=("trial_00000",)), tmp_path, num_samples=1)
    sweep.adopt(trials)
    with pytest.raises(LaunchError, match="All trials would fail like this one"):
        sweep.run()
    assert states(sweep) == ["PENDING"]


def test_reports_of_before_are_not_new_where_a_trial_that_failed_is_tried_again(
    tmp_path: Path,
) -> None:
    first = FakeRunner({"trial_00000": Script(fails="broken")})
    make_sweep(first, tmp_path, num_samples=1).run()
    trials = read_record(SweepPaths(root=tmp_path)).trials
    sweep = make_sweep(Blind(made=first.made, blind=("trial_00000",)), tmp_path, num_samples=1)
    sweep.adopt(trials)
    sweep.retry(trials["trial_00000"])
    with pytest.raises(LaunchError, match="All trials would fail like this one"):
        sweep.run()
    assert states(sweep) == ["PENDING"]


def test_a_node_that_sees_nothing_costs_its_trial_alone_where_others_have_reported(
    tmp_path: Path,
) -> None:
    sweep = make_sweep(Blind(blind=("trial_00003",)), tmp_path, num_samples=6)
    sweep.run()
    assert states(sweep) == 3 * ["TERMINATED"] + ["ERROR"] + 2 * ["TERMINATED"]
