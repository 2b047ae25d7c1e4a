"""Populations of trials that are played by a fake runner, whose tuner can die at any moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hpctrain.errors import CheckpointError
from hpctrain.tune.ledger import SweepLedger
from hpctrain.tune.runner import End, Look, Report, Saved
from hpctrain.tune.slots import Need
from hpctrain.tune.trial import Origin, Transfer, Trial
from tests.tune.played import FakeRunner

LENGTH = 8


class KilledError(BaseException):
    """The tuner dies here."""


@dataclass
class Killer:
    """Kills the tuner at its so-manieth moment."""

    moments: int = -1

    def pass_moment(self) -> None:
        self.moments -= 1
        if self.moments == 0:
            raise KilledError


@dataclass
class PlayedPopulation(FakeRunner):
    """Plays runs whose state is the list of all steps that have led to it."""

    saved: dict[str, list[tuple[str, Any]]] = field(default_factory=dict)
    """State of the newest checkpoint."""
    loaded: dict[str, list[tuple[str, Any]]] = field(default_factory=dict)
    """State of those at work."""
    old: dict[tuple[str, str], list[tuple[str, Any]]] = field(default_factory=dict)
    """State of each checkpoint that there ever was."""
    gone: set[tuple[str, str]] = field(default_factory=set)
    killer: Killer = field(default_factory=Killer)
    saves_each: int = 1
    """So many steps are between two checkpoints; 0: there are none."""
    length: int = LENGTH
    need: Need = field(default_factory=lambda: Need(cpus=1))
    finished: set[str] = field(default_factory=set)
    """Runs that have come to their end, whether or not anybody has seen it."""

    def attach(self, trial: Trial) -> bool:
        return super().attach(trial) or trial.trial_id in self.finished

    def need_of(self, trial: Trial) -> Need:
        return self.need

    def start(self, trial: Trial) -> None:
        assert trial.transfer is None, "what is to be cloned is cloned before"
        super().start(trial)
        self.asked = [name for name in self.asked if name != trial.trial_id]
        self.loaded[trial.trial_id] = list(self.saved.get(trial.trial_id, []))
        self.config_of_run = {**getattr(self, "config_of_run", {}), trial.trial_id: trial.config}

    def look(self, trial: Trial) -> Look:
        name = trial.trial_id
        if name in self.finished:
            return Look(end=End(failed=False, was_stopped=False))
        is_asked, state = name in self.asked, self.loaded[name]
        if len(state) >= self.length:
            # It began with the last checkpoint of one that has ended.
            self.finished.add(name)
            del self.at_work[name]
            return Look(end=End(failed=False, was_stopped=False))
        state.append((name, self.config_of_run[name]["lr"]))
        reports = self.made.setdefault(name, [])
        number = len(reports) + 1
        metrics = {"m": sum(lr for _, lr in state), "training_iteration": len(state)}
        reports.append(Report(number=number, time=self.now, metrics=metrics))
        if self.saves_each and len(state) % self.saves_each == 0:
            self.saved[name] = list(state)
            self.old[name, str(number)] = list(state)
        end = None
        if len(state) >= self.length:
            end = End(failed=False, was_stopped=False)
            self.finished.add(name)
        elif is_asked:
            end = End(failed=False, was_stopped=True)
        if end is not None:
            del self.at_work[name], self.loaded[name]
        return Look(reports=reports[-1:], end=end)

    def find_saved(self, trial: Trial) -> Saved | None:
        state = self.saved.get(trial.trial_id)
        if state is None:
            return None
        name = str(max(int(number) for who, number in self.old if who == trial.trial_id))
        return Saved(name=name, iteration=len(state), seconds=0.0)

    def hold(self, trial: Trial, transfer: Transfer) -> None:
        if (transfer.donor, transfer.checkpoint) in self.gone:
            raise CheckpointError("deleted")

    def clone(self, trial: Trial, transfer: Transfer) -> Origin:
        assert trial.trial_id not in self.at_work
        self.killer.pass_moment()
        self.hold(trial, transfer)
        self.saved[trial.trial_id] = list(self.old[transfer.donor, transfer.checkpoint])
        self.killer.pass_moment()
        number = len(self.made[trial.trial_id])
        self.old[trial.trial_id, str(number)] = self.saved[trial.trial_id]
        return Origin(transfer=transfer, report=number, attempt=1)


@dataclass(frozen=True, kw_only=True)
class KilledLedger(SweepLedger):
    """Dies before or after it writes an event."""

    killer: Killer

    def append(self, event: str, **details: Any) -> None:
        self.killer.pass_moment()
        super().append(event, **details)
        self.killer.pass_moment()


@dataclass
class Population:
    """The trials of a sweep, as a scheduler sees them."""

    configs: dict[str, Any] = field(default_factory=dict)
    unsaved: set[str] = field(default_factory=set)
    waits: bool = False
    is_complete: bool = True

    def has_waiting(self, *, besides: str) -> bool:
        return self.waits

    def can_donate(self, trial_id: str) -> bool:
        return trial_id not in self.unsaved

    def config_of(self, trial_id: str) -> Mapping[str, Any]:
        return self.configs[trial_id]
