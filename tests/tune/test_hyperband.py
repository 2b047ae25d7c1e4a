"""HyperBand decides as Ray Tune's does (record_ray.py), and its trials wait for each other."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpctrain import ConfigError, tune
from hpctrain.tune.ledger import SweepLedger, SweepPaths, read_record
from hpctrain.tune.schedulers import HyperBandScheduler
from hpctrain.tune.sweep import Sweep
from tests.tune.played import make_sweep, states
from tests.tune.played_population import (
    KilledError,
    KilledLedger,
    Killer,
    PlayedPopulation,
    Population,
)

RECORDED = json.loads((Path(__file__).parent / "recorded/ray.json").read_text())["hyperband"]


@pytest.mark.parametrize("number", range(len(RECORDED)))
def test_the_trials_that_wait_stop_and_go_on_are_those_of_ray_tune(number: int) -> None:
    recorded = RECORDED[number]
    scheduler = HyperBandScheduler(metric="m", mode=recorded["mode"], **recorded["options"])
    scheduler.set_population(Population())
    waiting = [f"t{i}" for i in range(30)]
    for name in waiting:
        scheduler.on_trial_add(name)
    for chosen, report, decision, stopped in recorded["steps"]:
        for expected in chosen:
            assert scheduler.choose(waiting) == expected
            waiting = [name for name in waiting if name != expected]
        if report is None:
            break
        name, when, value = report
        assert scheduler.on_result(name, {"training_iteration": when, "m": value}) == decision
        assert sorted(scheduler.take_stops()) == sorted(stopped)
        waiting = [each for each in waiting if each not in stopped]
        if decision == "PAUSE":
            waiting.append(name)
        elif decision == "STOP":
            scheduler.on_remove(name)


def test_what_was_recorded_has_each_decision() -> None:
    steps = [step for each in RECORDED for step in each["steps"]]
    assert {"CONTINUE", "PAUSE", "STOP"} <= {decision for _, _, decision, _ in steps}
    assert sum(len(stopped) for *_, stopped in steps) > 100


def halving(**options: Any) -> HyperBandScheduler:
    given = {"metric": "m", "mode": "max", "max_t": 4, "reduction_factor": 2, **options}
    scheduler = HyperBandScheduler(**given)
    scheduler.set_population(Population())
    return scheduler


def test_a_bracket_that_is_not_full_waits_while_further_trials_come() -> None:
    scheduler, population = halving(), Population(is_complete=False)
    scheduler.set_population(population)
    scheduler.on_trial_add("a")
    scheduler.on_trial_add("b")
    for name in "ab":
        assert scheduler.on_result(name, {"m": 1, "training_iteration": 4}) == "PAUSE"
    assert scheduler.choose(["a", "b"]) is None
    population.is_complete = True
    scheduler.on_trial_add("c")
    assert scheduler.on_result("c", {"m": 1, "training_iteration": 4}) == "STOP"
    assert sorted(scheduler.take_stops()) == ["a", "b"]


def test_nobody_waits_for_a_trial_that_has_ended() -> None:
    scheduler = halving()
    for number in range(3 + 3):
        scheduler.on_trial_add(str(number))
    # The second bracket: milestones 2 and 4.
    for number in (3, 4):
        report = {"m": number, "training_iteration": 2}
        assert scheduler.on_result(str(number), report) == "PAUSE"
    assert scheduler.choose(["3", "4"]) is None
    scheduler.on_remove("5")
    assert scheduler.choose(["3", "4"]) in ("3", "4")


def test_a_bracket_whose_trials_are_beyond_its_next_milestone_is_halved_once_more() -> None:
    scheduler = halving()
    for number in range(3 + 3 + 4):
        scheduler.on_trial_add(str(number))
    # The third bracket: milestones 1, 2 and 4. Reports come at 2 and 4.
    for number in (6, 7, 8):
        assert scheduler.on_result(str(number), {"m": number, "training_iteration": 2}) == "PAUSE"
    assert scheduler.on_result("9", {"m": 9, "training_iteration": 2}) == "CONTINUE"
    assert sorted(scheduler.take_stops()) == ["6", "7", "8"]
    assert scheduler.on_result("9", {"m": 9, "training_iteration": 4}) == "STOP"


def test_trials_that_wait_for_others_go_on_or_end_once_no_others_come() -> None:
    scheduler, population = halving(), Population(is_complete=False)
    scheduler.set_population(population)
    for number in range(3 + 2):
        scheduler.on_trial_add(str(number))
    for number in (3, 4):
        assert scheduler.on_result(str(number), {"m": 1, "training_iteration": 2}) == "PAUSE"
    assert not scheduler.take_stops()
    assert scheduler.choose(["3", "4"]) is None
    population.is_complete = True
    assert not scheduler.take_stops(), "the bracket has room for both"
    assert scheduler.choose(["3", "4"]) == "3"


@dataclass
class _Ending:
    """A search that ends before there are as many trials as it may propose."""

    left: int
    last: str | None
    most: int = 99
    at_work: set[str] = field(default_factory=set)

    def suggest(self, trial_id: str) -> Any:
        if not self.left:
            return self.last
        if len(self.at_work) >= self.most:
            return None
        self.left -= 1
        self.at_work.add(trial_id)
        return {"lr": self.left / 100}

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        """Learn nothing."""

    def on_trial_complete(self, trial_id: str, **result: Any) -> None:
        self.at_work.remove(trial_id)


@pytest.mark.parametrize("last", ["FINISHED", None])
@pytest.mark.parametrize(("proposed", "most"), [(5, 99), (7, 99), (8, 3)])
@pytest.mark.parametrize("capacity", [1, 3, 8])
def test_a_search_that_ends_early_lets_no_trial_wait_for_those_that_do_not_come(
    capacity: int, proposed: int, most: int, last: str | None, tmp_path: Path
) -> None:
    runner = PlayedPopulation(capacity=capacity, length=60)
    scheduler = HyperBandScheduler(metric="m", mode="max", max_t=9, reduction_factor=3)
    search = _Ending(left=proposed, last=last, most=most)
    sweep = make_sweep(runner, tmp_path, num_samples=17, search=search, scheduler=scheduler)
    sweep.run()
    assert states(sweep) == proposed * ["TERMINATED"]
    assert not search.at_work
    # It begins, and goes on after each of two milestones at the most.
    assert max(Counter(runner.started).values()) <= 3


def test_a_trial_that_waits_when_the_time_is_up_ends_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    # The end of one lets the scheduler end others that are about to be ended, too.
    for budget_s in range(8, 15):
        root = tmp_path / str(budget_s)
        root.mkdir()
        search = _Ending(left=99, last=None)
        sweep = make_sweep(
            PlayedPopulation(capacity=4, length=60),
            root,
            num_samples=17,
            search=search,
            scheduler=HyperBandScheduler(metric="m", mode="max", max_t=9, reduction_factor=3),
            time_budget_s=budget_s,
        )
        sweep.run()
        assert not search.at_work
        events = map(json.loads, SweepPaths(root=root).events.read_text().splitlines())
        ended = Counter(each["trial"] for each in events if each["event"] == "trial-ended")
        assert set(ended.values()) <= {1}, budget_s


def sweep_of(runner: PlayedPopulation, root: Path) -> Sweep:
    scheduler = HyperBandScheduler(metric="m", mode="max", max_t=4, reduction_factor=2)
    space = {"lr": tune.uniform(0, 1)}
    return make_sweep(runner, root, num_samples=8, space=space, scheduler=scheduler)


@pytest.mark.parametrize("capacity", [1, 3, 8])
def test_better_trials_are_trained_longer_whatever_fits_at_the_same_time(
    capacity: int, tmp_path: Path
) -> None:
    runner = PlayedPopulation(capacity=capacity)
    sweep = sweep_of(runner, tmp_path)
    sweep.run()
    assert states(sweep) == 8 * ["TERMINATED"]
    lengths = [len(runner.saved[name]) for name in sweep.trials]
    # A trial stops at the report after its last.
    assert max(lengths) == 5
    assert min(lengths[:3]) >= 4, "the first bracket has no milestone before the end"
    assert sum(length < 4 for length in lengths) >= 2
    assert all(len({who for who, _ in state}) == 1 for state in runner.saved.values())


def test_trials_that_cannot_be_paused_stop_at_max_t(tmp_path: Path) -> None:
    runner = PlayedPopulation(capacity=2, saves_each=0, length=9)
    sweep = sweep_of(runner, tmp_path)
    sweep.run()
    assert states(sweep) == 8 * ["TERMINATED"]
    # It is asked to wait at the last milestone, and to stop at the report after that.
    assert max(trial.reports for trial in sweep.trials.values()) <= 4 + 2


def test_a_halving_that_is_killed_at_any_moment_goes_on_to_its_end(
    each_example: Callable[[Callable[[Any], None]], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The tuner dies, and not the machine.
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)

    def check(rng: np.random.Generator) -> None:
        root = tmp_path / str(rng.integers(2**60))
        root.mkdir()
        killer = Killer()
        runner = PlayedPopulation(capacity=int(rng.integers(1, 6)))
        for _ in range(2):
            killer.moments = int(rng.integers(1, 70))
            sweep = sweep_of(runner, root)
            sweep._trials._ledger = KilledLedger(paths=SweepPaths(root=root), killer=killer)
            sweep._interrupt = lambda: None  # type: ignore[method-assign]
            try:
                sweep.adopt(read_record(SweepPaths(root=root)).trials)
                sweep.run()
            except KilledError:
                pass
            for name in list(runner.at_work):
                if rng.random() < 0.5:
                    del runner.at_work[name], runner.loaded[name]
        sweep = sweep_of(runner, root)
        sweep._trials._ledger = SweepLedger(paths=SweepPaths(root=root))
        sweep.adopt(read_record(SweepPaths(root=root)).trials)
        sweep.run()
        assert states(sweep) == 8 * ["TERMINATED"]
        lengths = [len(runner.saved[name]) for name in sweep.trials]
        assert min(lengths[:3]) >= 4
        assert sum(length < 4 for length in lengths) >= 1, "worse ones were stopped"

    each_example(check)


@pytest.mark.parametrize("capacity", [3, 8])
def test_a_halving_that_is_interrupted_at_any_moment_lets_the_same_trials_go_on(
    capacity: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)

    def lengths(interrupt_at: float) -> list[int]:
        root = tmp_path / str(interrupt_at)
        root.mkdir()
        runner = PlayedPopulation(capacity=capacity, interrupt_at=interrupt_at)
        sweep = sweep_of(runner, root)
        try:
            sweep.run()
        except KeyboardInterrupt:
            # What trials have reported while they stopped has had no answer.
            sweep = sweep_of(runner, root)
            sweep.adopt(read_record(SweepPaths(root=root)).trials)
            sweep.run()
        assert states(sweep) == 8 * ["TERMINATED"]
        return [len(runner.saved[name]) for name in sweep.trials]

    whole = lengths(math.inf)
    for moment in range(1, 20):
        # A trial stops at the report after its last.
        assert lengths(moment) == pytest.approx(whole, abs=1), moment


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: HyperBandScheduler(max_t=0), "A number above 0"),
        (lambda: HyperBandScheduler(max_t=0.5), "milestones are whole"),
        (lambda: HyperBandScheduler(reduction_factor=1), "milestones have to grow"),
        (lambda: HyperBandScheduler(mode="maximum"), "One of 'min', 'max'"),
        (lambda: HyperBandScheduler().set_search_properties(None, None), "needs a metric"),
    ],
)
def test_a_wrong_setting_is_refused_with_what_is_needed(
    make: Callable[[], object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
