"""A recorded benchmark surface: what 324 configurations of a perceptron reach on digits, by epoch.

``train_surface.py`` has measured it. The sweeps on it are played with Ray Tune's schedulers
(``record_ray_on_surface.py``) and with those of hpctrain. This module needs neither of them.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).parent / "recorded"


class Surface:
    """Looks up what was measured."""

    def __init__(self) -> None:
        recorded = json.loads((RECORDED / "surface.json").read_text(encoding="utf-8"))
        self.made_with = recorded["made_with"]
        self._grid = recorded["grid"]
        self._held_out = recorded["held_out"]
        self._loss, self._correct = recorded["loss"], recorded["correct"]
        self._microseconds = recorded["microseconds"]
        self.configs = [
            dict(zip(self._grid, values, strict=True))
            for values in itertools.product(*self._grid.values())
        ]
        self.epochs = len(self._loss[0])

    def microseconds(self, config: dict[str, Any], epoch: int) -> int:
        """Return how long an epoch takes, counted from 1."""
        return int(self._microseconds[self._nearest(config)][epoch - 1])

    def metrics(self, config: dict[str, Any], epoch: int) -> dict[str, float]:
        """Return what a trial reports after an epoch, counted from 1."""
        number = self._nearest(config)
        loss = self._loss[number][epoch - 1]
        return {
            "loss": math.nan if loss is None else loss,
            "accuracy": self._correct[number][epoch - 1] / self._held_out,
        }

    def _nearest(self, config: dict[str, Any]) -> int:
        """Return the number of the nearest configuration: learning rates by their logarithm."""
        number = 0
        for name, values in self._grid.items():
            scale = math.log if name == "lr" else float
            steps = [abs(scale(value) - scale(config[name])) for value in values]
            number = number * len(values) + steps.index(min(steps))
        return number


@dataclass(frozen=True, kw_only=True)
class Played:
    """A sweep on the surface."""

    rule: str
    options: dict[str, Any] = field(default_factory=dict)
    metric: str = "loss"
    seed: int = 0
    num_trials: int = 81
    slots: int = 4
    saves_every: int = 1
    """Epochs from one checkpoint to the next."""

    @property
    def mode(self) -> str:
        """Whether small or large values are better."""
        return "min" if self.metric == "loss" else "max"

    @property
    def name(self) -> str:
        """Of the sweep, for people."""
        given = ", ".join(f"{key}={value}" for key, value in self.options.items())
        return f"{self.rule}({given}), {self.metric}, {self.slots} slots, seed {self.seed}"

    def configs(self, surface: Surface) -> list[dict[str, Any]]:
        """Return the configurations of its trials, in their order."""
        return random.Random(self.seed).sample(surface.configs, self.num_trials)


_ASHA: list[dict[str, Any]] = [
    {"max_t": 27, "grace_period": 1, "reduction_factor": 3},
    {"max_t": 27, "grace_period": 2, "reduction_factor": 2},
    {"max_t": 27, "grace_period": 1, "reduction_factor": 3, "brackets": 3},
    {"max_t": 27, "grace_period": 1, "reduction_factor": 4, "brackets": 2},
    {"max_t": 27, "grace_period": 1, "reduction_factor": 3, "stop_last_trials": False},
    {"max_t": 81, "grace_period": 3, "reduction_factor": 2.5},
]
_HYPERBAND: list[dict[str, Any]] = [
    {"max_t": 27, "reduction_factor": 3},
    {"max_t": 16, "reduction_factor": 2},
    {"max_t": 9, "reduction_factor": 3, "stop_last_trials": False},
]
_MEDIAN: list[dict[str, Any]] = [
    {"time_attr": "training_iteration", "grace_period": 1, "min_samples_required": 3},
    {"time_attr": "time_total_s", "grace_period": 0.05, "min_samples_required": 5},
]
_PBT: list[tuple[dict[str, Any], int]] = [
    ({"perturbation_interval": 3}, 16),
    ({"perturbation_interval": 3, "quantile_fraction": 0.5, "resample_probability": 0.6}, 5),
    ({"perturbation_interval": 2, "burn_in_period": 6, "perturbation_factors": [2.0, 0.5]}, 16),
    ({"perturbation_interval": 3, "synch": True}, 16),
    ({"perturbation_interval": 2, "synch": True, "quantile_fraction": 0.4}, 5),
]
SWEEPS = [
    *(
        Played(rule=rule, options=options, metric=metric, seed=seed, slots=slots)
        for rule, all_options in (("ASHA", _ASHA), ("HyperBand", _HYPERBAND), ("Median", _MEDIAN))
        for options in all_options
        for metric, seed, slots in (("loss", 0, 4), ("accuracy", 1, 9))
    ),
    *(
        Played(
            rule="PBT",
            options={"time_attr": "training_iteration", **options},
            metric=metric,
            seed=seed,
            num_trials=16,
            slots=slots,
            saves_every=options["perturbation_interval"],
        )
        for options, slots in _PBT
        for metric, seed in (("loss", 2), ("accuracy", 3))
    ),
]


def mutations(rng: Any) -> dict[str, Any]:
    """Return hyperparameters of a population, drawn with the generator of its scheduler."""
    return {
        "lr": lambda: 10 ** rng.uniform(-3.5, 0.5),
        "momentum": [0.0, 0.9],
        "batch_size": [16, 64, 256],
        "weight_decay": [0.0, 0.001, 0.01],
    }
