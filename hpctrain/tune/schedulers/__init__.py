"""Schedulers of `hpctrain.tune`, by Ray Tune's names."""

from __future__ import annotations

from hpctrain.tune.schedulers.asha import ASHAScheduler as ASHAScheduler
from hpctrain.tune.schedulers.asha import AsyncHyperBandScheduler as AsyncHyperBandScheduler
from hpctrain.tune.schedulers.median import MedianStoppingRule as MedianStoppingRule
from hpctrain.tune.schedulers.scheduler import FIFOScheduler as FIFOScheduler
from hpctrain.tune.schedulers.scheduler import TrialScheduler as TrialScheduler

__all__ = [
    "ASHAScheduler",
    "AsyncHyperBandScheduler",
    "FIFOScheduler",
    "MedianStoppingRule",
    "TrialScheduler",
]
