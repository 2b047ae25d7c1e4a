"""`SweepRules`: what ends a sweep, or a trial, besides the scheduler."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from hpctrain import timeouts
from hpctrain.errors import ConfigError
from hpctrain.metric_names import all_names, explain_unknown, has_metric
from hpctrain.tune.runner import Report
from hpctrain.tune.trial import Trial
from hpctrain.tune.tune_config import TuneConfig


@dataclass(frozen=True, kw_only=True)
class SweepRules:
    """What ends a sweep, or a trial, besides the scheduler."""

    metrics: Mapping[str, str] = field(default_factory=dict)
    """What must be in the first report of each trial, and what names it."""
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
            if isinstance(name, str):
                named.setdefault(name, f"{type(learner).__name__}({argument}=...)")
    return named


def check_metrics(trial: Trial, report: Report, metrics: Mapping[str, str]) -> None:
    """Refuse a first report that lacks a metric which the sweep needs. Pure.

    Raises
    ------
    ConfigError
        With the metrics that there are.
    """
    if report.is_partial:
        return
    for metric, owner in metrics.items():
        if not has_metric(report.metrics, metric):
            raise ConfigError(
                f"{trial.trial_id} reported no {metric!r}, which {owner} names. "
                f"{explain_unknown(metric, all_names(report.metrics))}"
            )
