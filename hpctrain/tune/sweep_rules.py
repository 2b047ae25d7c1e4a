"""`SweepRules`: what ends a sweep, or a trial, besides the scheduler."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from hpctrain import timeouts
from hpctrain.errors import ConfigError
from hpctrain.metric_names import all_names, explain_unknown, has_metric
from hpctrain.tune.runner import Report
from hpctrain.tune.trial import Trial


@dataclass(frozen=True, kw_only=True)
class SweepRules:
    """What ends a sweep, or a trial, besides the scheduler."""

    metric: str | None = None
    """Must be in the first report of each trial."""
    time_budget_s: float = math.inf
    fail_fast: bool | Literal["raise"] = False
    """Whether the first trial that fails ends all."""
    stop_patience_s: float = timeouts.TRIAL_STOP_S
    """Seconds after which a trial that was asked to stop is ended."""


def check_metric(trial: Trial, report: Report, metric: str) -> None:
    """Refuse a first report that lacks the metric of the sweep. Pure.

    Raises
    ------
    ConfigError
        With the metrics that there are.
    """
    if report.is_partial or has_metric(report.metrics, metric):
        return
    raise ConfigError(
        f"{trial.trial_id} reported no {metric!r}, which TuneConfig(metric=...) names. "
        f"{explain_unknown(metric, all_names(report.metrics))}"
    )
