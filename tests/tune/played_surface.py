"""Sweeps on the recorded surface (`tests.tune.surface`), played by hpctrain.

``python -m tests.tune.played_surface`` prints what each finds, and for how many epochs.
"""

from __future__ import annotations

import itertools
import json
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hpctrain.tune.ledger import SweepLedger, SweepPaths
from hpctrain.tune.runner import End, Look, Report, Saved
from hpctrain.tune.schedulers import (
    ASHAScheduler,
    FIFOScheduler,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
    TrialScheduler,
)
from hpctrain.tune.slots import Capacity, Slots
from hpctrain.tune.source import ConfigSource
from hpctrain.tune.sweep import Sweep
from hpctrain.tune.sweep_rules import SweepRules
from hpctrain.tune.trial import Origin, Transfer, Trial, name_trial
from tests.tune.played import FakeRunner
from tests.tune.surface import RECORDED, SWEEPS, Played, Surface, mutations


class InBrackets(ASHAScheduler):
    """Puts trials where Ray Tune put them, which draws from the generator of numpy."""

    brackets: Sequence[int] = ()

    def _choose_bracket(self) -> int:
        return self.brackets[len(self._bracket_of)]


class WithOneGenerator(PopulationBasedTraining):
    """Draws everything from one generator, as Ray Tune does."""

    one = random.Random(0)

    def _rng_of(self, trial_id: str, when: float) -> random.Random:
        return self.one


def make_scheduler(played: Played, brackets: Sequence[int] = ()) -> TrialScheduler:
    options: dict[str, Any] = {"metric": played.metric, "mode": played.mode, **played.options}
    if played.rule == "ASHA":
        scheduler = InBrackets(**options)
        scheduler.brackets = brackets
        return scheduler
    if played.rule == "PBT":
        rng = random.Random(played.seed)
        population = WithOneGenerator(hyperparam_mutations=mutations(rng), **options)
        population.one = rng
        return population
    if played.rule == "FIFO":
        return FIFOScheduler()
    return {"HyperBand": HyperBandScheduler, "Median": MedianStoppingRule}[played.rule](**options)


@dataclass
class OnSurface(FakeRunner):
    """Plays runs in the time that was measured; its clock counts microseconds."""

    surface: Surface = field(default_factory=Surface)
    saves_every: int = 1
    epochs: dict[str, int] = field(default_factory=dict)
    """Done by those at work, and by those that they go on from."""
    saved: dict[str, int] = field(default_factory=dict)
    """Epoch of the newest checkpoint."""
    due: dict[str, int] = field(default_factory=dict)
    """When each at work reports, or ends."""
    spent: dict[str, int] = field(default_factory=dict)
    """Microseconds of training."""
    config_of_run: dict[str, Any] = field(default_factory=dict)
    turn: str = ""
    """Whose report, or end, comes next: of two at the same time one comes first."""
    has_news: bool = False
    """Whether a report has been seen since the last wait: what it has led to is done before."""
    order: list[tuple[str, int]] = field(default_factory=list)
    """Of all reports: the trial, and how many epochs had led to it."""
    best: float = 0.0
    """The highest accuracy that was reported."""

    def start(self, trial: Trial) -> None:
        assert trial.transfer is None, "what is to be cloned is cloned before"
        super().start(trial)
        name = trial.trial_id
        self.config_of_run[name] = trial.config
        self.epochs[name] = self.saved.get(name, 0)
        self._await(name)

    def _await(self, name: str) -> None:
        done, now = self.epochs[name], int(self.now)
        if done < self.surface.epochs:
            now += self.surface.microseconds(self.config_of_run[name], done + 1)
        self.due[name] = now

    def look(self, trial: Trial) -> Look:
        name = trial.trial_id
        if name in self.asked:
            return self._end(name, was_stopped=True)
        if name != self.turn:
            return Look()
        self.turn = ""
        if self.epochs[name] == self.surface.epochs:
            return self._end(name, was_stopped=False)
        self.epochs[name] += 1
        done, config = self.epochs[name], self.config_of_run[name]
        self.spent[name] = self.spent.get(name, 0) + self.surface.microseconds(config, done)
        if done % self.saves_every == 0:
            self.saved[name] = done
        metrics = {
            "training_iteration": done,
            "time_total_s": self.spent[name] / 1e6,
            **self.surface.metrics(config, done),
        }
        self.best = max(self.best, metrics["accuracy"])
        self.order.append((name, done))
        made = self.made.setdefault(name, [])
        made.append(Report(number=len(made) + 1, time=self.now, metrics=metrics))
        self._await(name)
        self.has_news = True
        return Look(reports=made[-1:])

    def _end(self, name: str, *, was_stopped: bool) -> Look:
        self.asked = [each for each in self.asked if each != name]
        del self.at_work[name]
        return Look(end=End(failed=False, was_stopped=was_stopped))

    def wait(self, timeout_s: float) -> None:
        if self.has_news or self.asked:
            self.has_news = False
        else:
            self.turn = min(self.at_work, key=lambda name: (self.due[name], name))
            self.now = self.due[self.turn]

    def find_saved(self, trial: Trial) -> Saved | None:
        epoch = self.saved.get(trial.trial_id)
        return None if epoch is None else Saved(name=str(epoch), iteration=epoch, seconds=0.0)

    def clone(self, trial: Trial, transfer: Transfer) -> Origin:
        assert trial.trial_id not in self.at_work
        self.saved[trial.trial_id] = transfer.iteration
        report = len(self.made[trial.trial_id])
        return Origin(transfer=transfer, report=report, attempt=1)


@dataclass(frozen=True)
class _Configs:
    """Gives trials the configurations of the sweep."""

    configs: Sequence[dict[str, Any]]
    learns: bool = False

    def next(self, number: int, trial_id: str) -> dict[str, Any]:
        return self.configs[number]

    def is_done(self, number: int) -> bool:
        return number >= len(self.configs)

    def explain_none(self, number: int) -> str:
        return ""

    def propose_again(self, trial_id: str) -> None:
        return None


def make_played_sweep(
    played: Played, surface: Surface, root: Path, brackets: Sequence[int] = ()
) -> tuple[Sweep, OnSurface]:
    runner = OnSurface(surface=surface, saves_every=played.saves_every)
    configs = played.configs(surface)
    source: ConfigSource = _Configs(configs)
    ledger = SweepLedger(paths=SweepPaths(root=root))
    ledger.append("sweep-started", seed=0)
    sweep = Sweep(
        source=source,
        scheduler=make_scheduler(played, brackets),
        search=None,
        runner=runner,
        slots=Slots(Capacity(cpus=played.slots)),
        ledger=ledger,
        rules=SweepRules(),
        clock=lambda: runner.now,
    )
    # A bracket of HyperBand has all its trials before one of them begins, as where Ray Tune makes
    # them early (TUNE_MAX_PENDING_TRIALS_PG).
    names = map(name_trial, itertools.count())
    trials = [Trial(trial_id=name, config=c) for name, c in zip(names, configs, strict=False)]
    sweep.adopt({trial.trial_id: trial for trial in trials})
    return sweep, runner


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a sweep found, next to one of the same trials that stops none."""

    epochs: str
    """Of those of the other one."""
    time: str
    """Of the other one's."""
    accuracy: str
    """The best of the sweep, and of the other one."""


def play(played: Played, surface: Surface, brackets: Sequence[int] = ()) -> OnSurface:
    """Play a sweep to its end."""
    with tempfile.TemporaryDirectory() as root:
        sweep, runner = make_played_sweep(played, surface, Path(root), brackets)
        sweep.run()
    return runner


def play_fifo(played: Played, surface: Surface) -> OnSurface:
    """Play a sweep of the same trials that stops none."""
    return play(replace(played, rule="FIFO", options={}), surface)


def compare(ours: OnSurface, fifo: OnSurface) -> Found:
    """Return what a sweep found, next to one that stops no trial."""
    return Found(
        epochs=f"{100 * len(ours.order) / len(fifo.order):.0f} %",
        time=f"{100 * ours.now / fifo.now:.0f} %",
        accuracy=f"{ours.best:.4f} of {fifo.best:.4f}",
    )


def main() -> None:
    surface = Surface()
    recorded = json.loads((RECORDED / "ray-on-surface.json").read_text())["sweeps"]
    for played, by_ray in zip(SWEEPS, recorded, strict=True):
        ours = play(played, surface, by_ray["brackets"])
        found = compare(ours, play_fifo(played, surface))
        print(
            f"{played.name}: {found.epochs} of the epochs, {found.time} of the time; accuracy "
            f"{found.accuracy}",
            flush=True,
        )


if __name__ == "__main__":
    main()
