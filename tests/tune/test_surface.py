"""Schedulers stop the trials that Ray Tune's stop, on a recorded benchmark surface.

``record_ray_on_surface.py`` has recorded what Ray Tune decides there.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpctrain.tune.ledger import SweepPaths
from hpctrain.tune.schedulers import TrialScheduler
from hpctrain.tune.trial import name_trial
from tests.tune.played_population import Population
from tests.tune.played_surface import compare, make_played_sweep, make_scheduler, play, play_fifo
from tests.tune.surface import RECORDED, SWEEPS, Played, Surface

RAY = json.loads((RECORDED / "ray-on-surface.json").read_text())["sweeps"]
DECISIONS = {"C": "CONTINUE", "S": "STOP", "P": "PAUSE"}
each_sweep = pytest.mark.parametrize(
    ("played", "recorded"), list(zip(SWEEPS, RAY, strict=True)), ids=[each.name for each in SWEEPS]
)


@pytest.fixture(scope="module")
def surface() -> Surface:
    return Surface()


class _Trials:
    """Trials of a sweep as a scheduler alone sees them, on so many slots."""

    def __init__(self, played: Played, surface: Surface, scheduler: TrialScheduler) -> None:
        self._played, self._surface, self._scheduler = played, surface, scheduler
        self.configs = {name_trial(i): each for i, each in enumerate(played.configs(surface))}
        self.population = Population(self.configs)
        self.waiting, self.running = list(self.configs), set[str]()
        self.saved: dict[str, int] = {}
        self._metrics: dict[str, dict[str, Any]] = {}
        self._microseconds = dict.fromkeys(self.configs, 0)
        scheduler.set_population(self.population)
        for name in self.configs:
            scheduler.on_trial_add(name)

    def fill(self) -> None:
        while len(self.running) < self._played.slots and self.waiting:
            chosen = self._scheduler.choose(self.waiting)
            if chosen is None:
                break
            self.waiting.remove(chosen)
            self.running.add(chosen)
        self.population.waits = bool(self.waiting)
        for name in sorted(self.running):
            if self.saved.get(name) == self._surface.epochs:
                self.complete(name)
                self.fill()
                return

    def report(self, name: str, epoch: int) -> dict[str, Any]:
        config = self.configs[name]
        self._microseconds[name] += self._surface.microseconds(config, epoch)
        if epoch % self._played.saves_every == 0:
            self.saved[name] = epoch
        self._metrics[name] = {
            "training_iteration": epoch,
            "time_total_s": self._microseconds[name] / 1e6,
            **self._surface.metrics(config, epoch),
        }
        return self._metrics[name]

    def pause(self, name: str) -> None:
        self.running.discard(name)
        # In the order in which they were made.
        self.waiting = sorted({*self.waiting, name})

    def stop(self, name: str) -> None:
        self.running.discard(name)
        self.waiting = [each for each in self.waiting if each != name]
        self._scheduler.on_remove(name)

    def complete(self, name: str) -> None:
        self._scheduler.on_complete(name, self._metrics[name])
        self.stop(name)


def _steps(recorded: dict[str, Any]) -> Iterator[tuple[int, int, str, list[int], list[Any]]]:
    """Return trial, epoch and decision; which others stop; and which go on as others."""
    for index, step in enumerate(recorded["steps"].split()):
        number, epoch = step[:-1].split(".")
        yield int(number), int(epoch), step[-1], *recorded["others"].get(str(index), ([], []))


@each_sweep
def test_the_decision_after_each_report_is_that_of_ray_tune(
    played: Played, recorded: dict[str, Any], surface: Surface
) -> None:
    assert recorded["name"] == played.name
    scheduler = make_scheduler(played, recorded["brackets"])
    trials = _Trials(played, surface, scheduler)
    trials.fill()
    for number, epoch, decision, stopped, moved in _steps(recorded):
        name = name_trial(number)
        assert name in trials.running, "the same trials are chosen to go on"
        metrics = trials.report(name, epoch)
        assert scheduler.on_result(name, metrics) == DECISIONS[decision], (name, epoch)
        assert sorted(scheduler.take_stops()) == [name_trial(each) for each in stopped]
        assert [[e.trial_id, e.donor, e.config] for e in scheduler.take_exploits()] == [
            [name_trial(to), name_trial(donor), config] for to, donor, _, config in moved
        ]
        for to, _, saved, config in moved:
            trials.configs[name_trial(to)], trials.saved[name_trial(to)] = config, saved
        for each in stopped:
            trials.stop(name_trial(each))
        if decision == "S":
            trials.stop(name)
        elif decision == "P":
            trials.pause(name)
        elif epoch == surface.epochs:
            trials.complete(name)
        trials.fill()
    assert not trials.running
    assert not trials.waiting


@each_sweep
def test_a_sweep_gives_the_trials_the_epochs_that_ray_tune_gives_them(
    played: Played,
    recorded: dict[str, Any],
    surface: Surface,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    sweep, runner = make_played_sweep(played, surface, tmp_path, recorded["brackets"])
    sweep.run()
    steps = list(_steps(recorded))
    # Reports come as fast as was measured: each decision moves all that come later.
    assert runner.order == [(name_trial(number), epoch) for number, epoch, *_ in steps]
    lines = SweepPaths(root=tmp_path).events.read_text().splitlines()
    events = [json.loads(line) for line in lines]
    perturbed = [
        [event["trial"], event["donor"], event["iteration"], event["config"]]
        for event in events
        if event["event"] == "trial-perturbed"
    ]
    assert perturbed == [
        [name_trial(to), name_trial(donor), epoch, config]
        for *_, moved in steps
        for to, donor, epoch, config in moved
    ]
    stopped = [name for name, trial in sweep.trials.items() if trial.stopped_after is not None]
    by_ray = {number for number, _, decision, *_ in steps if decision == "S"}
    by_ray |= {each for *_, others, _ in steps for each in others}
    assert set(stopped) <= set(map(name_trial, by_ray))
    ended_early = [name for name, trial in sweep.trials.items() if "scheduler" in trial.reason]
    assert ended_early == [name_trial(each) for each in sorted(by_ray)]


def test_what_was_recorded_has_each_decision_of_each_rule() -> None:
    steps: dict[str, list[Any]] = {}
    for played, recorded in zip(SWEEPS, RAY, strict=True):
        steps.setdefault(played.rule, []).extend(_steps(recorded))
    found = {rule: {decision for _, _, decision, *_ in of} for rule, of in steps.items()}
    assert found == {
        "ASHA": {"C", "S"},
        "HyperBand": {"C", "S", "P"},
        "Median": {"C", "S"},
        "PBT": {"C", "P"},
    }
    assert sum(len(moved) for *_, moved in steps["PBT"]) > 100


def test_the_surface_is_a_real_one(surface: Surface) -> None:
    last = [surface.metrics(config, surface.epochs) for config in surface.configs]
    assert max(each["accuracy"] for each in last) > 0.95
    assert min(each["accuracy"] for each in last) < 0.2, "some learn nothing"
    assert any(math.isnan(each["loss"]) for each in last), "some diverge"
    config = {**surface.configs[0], "lr": 0.00031}
    assert surface.metrics(config, 3) == surface.metrics(surface.configs[0], 3)
    assert set(surface.made_with) == {"python", "torch", "scikit-learn", "machine"}


def test_fifo_is_what_the_others_are_compared_with(tmp_path: Path, surface: Surface) -> None:
    fifo = Played(rule="FIFO", num_trials=5)
    assert isinstance(make_scheduler(fifo), TrialScheduler)
    sweep, runner = make_played_sweep(fifo, surface, tmp_path)
    sweep.run()
    assert len(runner.order) == 5 * surface.epochs


def test_what_sweeps_find_is_on_the_page(surface: Surface, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    page = (Path(__file__).parents[2] / "docs/tune.rst").read_text()
    # The first ones are of the same trials, on as many slots.
    for numbers in ([0, 4, 12, 18], [22]):
        fifo = play_fifo(SWEEPS[numbers[0]], surface)
        for number in numbers:
            found = compare(play(SWEEPS[number], surface, RAY[number]["brackets"]), fifo)
            row = f"     - {found.epochs}\n     - {found.time}\n     - {found.accuracy}\n"
            assert row in page, "as python -m tests.tune.played_surface prints it"
