"""`SweepRules`: what ends a sweep."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from hpctrain import timeouts


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
