"""What Ray's tests of schedulers hold in their hands, with hpctrain's schedulers inside.

They call a scheduler as Ray Tune's controller does, with objects for the controller and the trials.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from hpctrain.tune import schedulers

_numbers = itertools.count()
MOCK_TRAINABLE_NAME = "trainable"


def register_mock_trainable() -> None:
    """Do nothing: a trial here needs no name of what it runs."""


class Trial:
    """A trial, for its identity and its configuration."""

    def __init__(self, trainable_name: str, config: Mapping[str, Any] | None = None) -> None:
        self.trainable_name = trainable_name
        self.trial_id = f"trial_{next(_numbers):05d}"
        self.config = config or {}


class _Trials:
    """A population that is complete, of trials without checkpoints."""

    is_complete = True

    def __init__(self) -> None:
        self.by_id: dict[str, Trial] = {}

    def has_waiting(self, *, besides: str) -> bool:
        return False

    def can_donate(self, trial_id: str) -> bool:
        return False

    def config_of(self, trial_id: str) -> Mapping[str, Any]:
        return self.by_id[trial_id].config


class _Driven:
    """A scheduler of hpctrain, called by the names of Ray Tune's."""

    rule_class: type[schedulers.TrialScheduler]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.rule = self.rule_class(*args, **kwargs)
        self.trials = _Trials()
        self.rule.set_population(self.trials)

    def on_trial_add(self, controller: object, trial: Trial) -> None:
        self.trials.by_id[trial.trial_id] = trial
        self.rule.on_trial_add(trial.trial_id)

    def on_trial_result(self, controller: object, trial: Trial, result: dict[str, Any]) -> str:
        return self.rule.on_result(trial.trial_id, result)

    def on_trial_complete(self, controller: object, trial: Trial, result: dict[str, Any]) -> None:
        self.rule.on_complete(trial.trial_id, result)
        self.rule.on_remove(trial.trial_id)


class AsyncHyperBandScheduler(_Driven):
    rule_class = schedulers.AsyncHyperBandScheduler


class HyperBandScheduler(_Driven):
    rule_class = schedulers.HyperBandScheduler


class MedianStoppingRule(_Driven):
    rule_class = schedulers.MedianStoppingRule


class PopulationBasedTraining(_Driven):
    rule_class = schedulers.PopulationBasedTraining
