"""`SweepRules`: what ends a sweep, or a trial, besides the scheduler."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from hpctrain import timeouts
from hpctrain.tune.tune_config import TuneConfig

# To each report, for schedulers.
_ADDED = ("training_iteration", "time_total_s")


@dataclass(frozen=True, kw_only=True)
class SweepRules:
    """What ends a sweep, or a trial, besides the scheduler."""

    metrics: Mapping[str, str] = field(default_factory=dict)
    """What each trial has to report, and what names it."""
    time_budget_s: float = math.inf
    spent_s: float = 0.0
    """Seconds of it that are over when the sweep is restored: it ran for so long before."""
    fail_fast: bool | Literal["raise"] = False
    """Whether the first trial that fails ends all."""
    ends_at_interrupt: bool = True
    """Whether Ctrl-C stops the trials, or leaves them at work."""
    stop_patience_s: float = timeouts.TRIAL_STOP_S
    """Seconds after which a trial that was asked to stop is ended."""


def name_metrics(config: TuneConfig, scheduler: object) -> dict[str, str]:
    """Return the metrics that a sweep needs, and what names each. Not collective.

    Parameters
    ----------
    scheduler
        The scheduler of the sweep. It and the search algorithm have the metric of the TuneConfig,
        or one of their own; it measures time by another one.
    """
    named = {} if config.metric is None else {config.metric: "TuneConfig(metric=...)"}
    for learner in (scheduler, config.search_alg):
        for argument in ("metric", "time_attr"):
            name = getattr(learner, argument, None)
            if isinstance(name, str) and name not in _ADDED:
                named.setdefault(name, f"{type(learner).__name__}({argument}=...)")
    return named
