"""Record what Ray Tune's schedulers decide on the surface, as ``recorded/ray-on-surface.json``.

Run it with a Python that has Ray: ``python -m tests.tune.record_ray_on_surface``. Trials report as
fast as was measured, on so many slots.
"""

from __future__ import annotations

import json
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import ray
from ray.tune.schedulers import (
    ASHAScheduler,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
)

from tests.tune.surface import RECORDED, SWEEPS, Played, Surface, mutations

_RULES = {
    "ASHA": ASHAScheduler,
    "HyperBand": HyperBandScheduler,
    "Median": MedianStoppingRule,
    "PBT": PopulationBasedTraining,
}


class _Trial:
    """A trial, as far as schedulers look at it."""

    def __init__(self, number: int, config: dict[str, Any]) -> None:
        self.number, self.config = number, config
        self.trial_id = self.experiment_tag = f"t{number}"
        self.status, self.is_saving = "PENDING", False
        self.epoch = self.due = self.microseconds = 0
        self.checkpoint: int | None = None
        """Epoch of the newest one."""
        self.last_result: dict[str, Any] = {}
        self.temporary_state = SimpleNamespace(saving_to=None)
        checkpoint_config = SimpleNamespace(num_to_keep=None)
        manager = SimpleNamespace(
            checkpoint_config=checkpoint_config, _latest_checkpoint_result=None
        )
        self.run_metadata = SimpleNamespace(checkpoint_manager=manager)

    def is_finished(self) -> bool:
        """Return whether it has ended."""
        return self.status == "TERMINATED"

    def set_config(self, config: dict[str, Any]) -> None:
        """Take another configuration, and the checkpoint that comes with it."""
        self.config = config

    def set_experiment_tag(self, tag: str) -> None:
        """Take another name, which nothing looks at."""


class _Controller:
    """Runs trials in the time that was measured, and does what the scheduler says."""

    search_alg = None

    def __init__(self, played: Played, surface: Surface) -> None:
        self._played, self._surface = played, surface
        random.seed(played.seed)
        np.random.seed(played.seed)
        options: dict[str, Any] = {"metric": played.metric, "mode": played.mode}
        if played.rule == "PBT":
            options |= {"hyperparam_mutations": mutations(random), "log_config": False}
        if played.rule == "Median":
            # No trial yields its slot: they would begin anew, without a checkpoint.
            options |= {"min_time_slice": float("inf")}
        self.scheduler = _RULES[played.rule](**options, **played.options)
        self.trials = [_Trial(i, config) for i, config in enumerate(played.configs(surface))]
        self._stopped: list[int] = []
        self._moved: list[Any] = []
        if played.rule == "PBT":
            self._exploit = self.scheduler._exploit
            self.scheduler._exploit = self._note_exploit

    def get_trials(self) -> list[_Trial]:
        """Return all trials."""
        return self.trials

    def get_live_trials(self) -> list[_Trial]:
        """Return those that have not ended."""
        return [trial for trial in self.trials if not trial.is_finished()]

    def pause_trial(self, trial: _Trial, should_checkpoint: bool = True) -> None:
        """Let a trial go on from its checkpoint later."""
        trial.status = "PAUSED"

    def stop_trial(self, trial: _Trial) -> None:
        """End a trial that waits."""
        trial.status = "TERMINATED"
        self._stopped.append(trial.number)
        self.scheduler.on_trial_remove(self, trial)

    def _schedule_trial_save(self, trial: _Trial, result: Any = None) -> int | None:
        return trial.checkpoint

    def _note_exploit(self, controller: Any, trial: _Trial, donor: _Trial) -> None:
        self._exploit(controller, trial, donor)
        manager = trial.run_metadata.checkpoint_manager
        trial.checkpoint = manager._latest_checkpoint_result.checkpoint
        self._moved.append([trial.number, donor.number, trial.checkpoint, trial.config])

    def play(self) -> dict[str, Any]:
        """Return all reports in their order, and what became of the trials after each.

        Others than the one that has reported stop, or go on as others from a checkpoint.
        """
        now, steps, brackets = 0, [], []
        others: dict[int, Any] = {}
        for trial in self.trials:
            self.scheduler.on_trial_add(self, trial)
            if self._played.rule == "ASHA":
                bracket = self.scheduler._trial_info[trial.trial_id]
                brackets.append(self.scheduler._brackets.index(bracket))
        while True:
            self._fill(now)
            running = [trial for trial in self.trials if trial.status == "RUNNING"]
            if not running:
                break
            # Two trials may take just as long: the one that was made first reports first.
            trial = min(running, key=lambda each: (each.due, each.number))
            now = trial.due
            if trial.epoch == self._surface.epochs:
                self._end(trial)
                continue
            trial.epoch += 1
            self._stopped, self._moved = [], []
            steps.append(f"{trial.number}.{trial.epoch}{self._report(trial)}")
            if self._stopped or self._moved:
                others[len(steps) - 1] = [sorted(self._stopped), self._moved]
            trial.due = now + self._next(trial)
        assert all(trial.is_finished() for trial in self.trials)
        return {
            "name": self._played.name,
            "brackets": brackets,
            # Trial, epoch, and the first letter of the decision.
            "steps": " ".join(steps),
            "others": others,
        }

    def _fill(self, now: int) -> None:
        while sum(trial.status == "RUNNING" for trial in self.trials) < self._played.slots:
            trial = self.scheduler.choose_trial_to_run(self)
            if trial is None:
                return
            trial.status = "RUNNING"
            trial.epoch = trial.checkpoint or 0
            trial.due = now + self._next(trial)

    def _next(self, trial: _Trial) -> int:
        if trial.epoch == self._surface.epochs:
            return 0
        return self._surface.microseconds(trial.config, trial.epoch + 1)

    def _report(self, trial: _Trial) -> str:
        config, epoch = trial.config, trial.epoch
        trial.microseconds += self._surface.microseconds(config, epoch)
        if epoch % self._played.saves_every == 0:
            trial.checkpoint = epoch
        trial.last_result = {
            "training_iteration": epoch,
            "time_total_s": trial.microseconds / 1e6,
            **self._surface.metrics(config, epoch),
        }
        decision: str = self.scheduler.on_trial_result(self, trial, trial.last_result)
        if decision == "STOP":
            trial.status = "TERMINATED"
        elif decision == "PAUSE" or trial.status == "PAUSED":
            trial.status, decision = "PAUSED", "PAUSE"
        return decision[0]

    def _end(self, trial: _Trial) -> None:
        trial.status = "TERMINATED"
        self.scheduler.on_trial_complete(self, trial, trial.last_result)


def main() -> None:
    """Write the file."""
    surface = Surface()
    sweeps = [_Controller(played, surface).play() for played in SWEEPS]
    recorded = {"ray": ray.__version__, "sweeps": sweeps}
    path = RECORDED / "ray-on-surface.json"
    path.write_text(json.dumps(recorded, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
