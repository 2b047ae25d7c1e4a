"""Sweeps with trials that are played by a fake runner."""

from __future__ import annotations

import math
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus, write_status
from hpctrain.tune.ledger import SweepLedger, SweepPaths
from hpctrain.tune.runner import End, Look, NotNowError, Report, Saved
from hpctrain.tune.schedulers import FIFOScheduler, TrialScheduler
from hpctrain.tune.slots import Capacity, Need, Slots
from hpctrain.tune.source import SearchSource, VariantSource
from hpctrain.tune.sweep import Sweep
from hpctrain.tune.sweep_rules import SweepRules
from hpctrain.tune.trial import Origin, Transfer, Trial
from hpctrain.tune.variants import Variants

NOBODY = 2**22 + 1
"""No process has this pid."""


@dataclass
class Script:
    """What a fake run does: a value at each look, then how it ends."""

    values: Sequence[float] = (1.0,)
    fails: str = ""
    hangs: bool = False
    """Whether it goes on without a report until it is stopped."""
    ignores_stop: bool = False
    calls: str | Sequence[str] = "m"
    """What it calls its values, all of them or one after the other."""


@dataclass
class FakeRunner:
    """Plays runs, one report at a look; its clock moves by one at each wait."""

    scripts: Mapping[str, Script] = field(default_factory=dict)
    capacity: int = 2
    now: float = 0.0
    at_work: dict[str, int] = field(default_factory=dict)
    made: dict[str, list[Report]] = field(default_factory=dict)
    most_at_work: int = 0
    asked: list[str] = field(default_factory=list)
    asked_by_person: list[str] = field(default_factory=list)
    """Runs that a person has stopped while there was no tuner."""
    ended: list[str] = field(default_factory=list)
    let_on: list[tuple[str, int]] = field(default_factory=list)
    started: list[str] = field(default_factory=list)
    refuses: Mapping[str, Exception] = field(default_factory=dict)
    begins_at: Mapping[str, float] = field(default_factory=dict)
    """Times before which trials cannot begin."""
    interrupt_at: float = math.inf

    def script(self, trial: Trial) -> Script:
        return self.scripts.get(trial.trial_id, Script())

    def need_of(self, trial: Trial) -> Need:
        config = trial.config
        return Need(
            cpus=config.get("cpus", 1), gpus=config.get("gpus", 0), mem_bytes=config.get("mem", 0)
        )

    def start(self, trial: Trial) -> None:
        if trial.trial_id in self.refuses:
            raise self.refuses[trial.trial_id]
        if self.now < self.begins_at.get(trial.trial_id, 0.0):
            raise NotNowError("no more jobs now")
        self.started.append(trial.trial_id)
        self.at_work[trial.trial_id] = 0
        self.most_at_work = max(self.most_at_work, len(self.at_work))

    def watch(self, trials: Sequence[Trial]) -> None:
        """What each does is known."""

    def attach(self, trial: Trial) -> bool:
        return trial.trial_id in self.at_work

    def was_asked_to_stop(self, trial: Trial) -> bool:
        return trial.trial_id in self.asked_by_person

    def history(self, trial: Trial) -> Sequence[Report]:
        return self.made.get(trial.trial_id, [])

    def forget(self, trial: Trial) -> None:
        """Nothing was noted."""

    def look(self, trial: Trial) -> Look:
        name, script = trial.trial_id, self.script(trial)
        if (name in self.asked and not script.ignores_stop) or name in self.ended:
            del self.at_work[name]
            return Look(end=End(failed=False, was_stopped=True))
        done = self.at_work[name]
        if done < len(script.values):
            self.at_work[name] += 1
            called = script.calls if isinstance(script.calls, str) else script.calls[done]
            metrics = {called: script.values[done], "training_iteration": done + 1}
            report = Report(number=done + 1, time=self.now, metrics=metrics)
            self.made.setdefault(name, []).append(report)
            return Look(reports=[report])
        if script.hangs:
            return Look()
        del self.at_work[name]
        return Look(end=End(failed=bool(script.fails), was_stopped=False, reason=script.fails))

    def find_saved(self, trial: Trial) -> Saved | None:
        made = self.made.get(trial.trial_id, [])
        return Saved(name=str(len(made)), iteration=len(made), seconds=0.0) if made else None

    def has_saved(self, trial: Trial) -> bool:
        return self.find_saved(trial) is not None

    def hold(self, trial: Trial, transfer: Transfer) -> None:
        """Nothing is deleted here."""

    def release(self, trial: Trial) -> None:
        """Nothing is deleted here."""

    def clone(self, trial: Trial, transfer: Transfer) -> Origin:
        raise NotImplementedError

    def stop(self, trial: Trial) -> None:
        self.asked.append(trial.trial_id)

    def end(self, trials: Sequence[Trial], *, patience_s: float) -> None:
        self.ended += [trial.trial_id for trial in trials]

    def let_go_on(self, trial: Trial, report: Report) -> None:
        self.let_on.append((trial.trial_id, report.number))

    def wait(self, timeout_s: float) -> None:
        self.now += 1
        assert self.now < 10_000
        if self.now >= self.interrupt_at:
            self.interrupt_at = math.inf
            raise KeyboardInterrupt


def make_sweep(
    runner: FakeRunner,
    root: Path,
    *,
    num_samples: int = 4,
    space: Mapping[str, Any] | None = None,
    scheduler: TrialScheduler | None = None,
    search: Any = None,
    slots: Any = None,
    **rules: Any,
) -> Sweep:
    source: Any = VariantSource(
        variants=Variants(space=space or {}, seed=0, num_samples=num_samples)
    )
    if search is not None:
        source = SearchSource(search=search, space=space or {}, num_samples=num_samples)
    ledger = SweepLedger(paths=SweepPaths(root=root))
    if not ledger.paths.events.exists():
        ledger.append("sweep-started", seed=0)
    return Sweep(
        source=source,
        scheduler=scheduler or FIFOScheduler(),
        search=search,
        runner=runner,
        slots=slots or Slots(Capacity(cpus=runner.capacity)),
        ledger=ledger,
        rules=SweepRules(**{"stop_patience_s": 5.0, **rules}),
        clock=lambda: runner.now,
    )


def states(sweep: Sweep) -> list[str]:
    return [trial.state.value for trial in sweep.trials.values()]


def running(paths: RunPaths, *, pid: int = NOBODY) -> None:
    """Write the status of a run at work by a process of this host; by default there is none."""
    paths.root.mkdir(parents=True, exist_ok=True)
    write_status(
        paths,
        RunStatus(
            name=paths.root.name,
            state=RunState.RUNNING,
            launcher="local",
            owner_host=socket.gethostname(),
            owner_pid=pid,
        ),
    )
