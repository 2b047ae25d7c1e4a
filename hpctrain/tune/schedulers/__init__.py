"""Schedulers of `hpctrain.tune`, by Ray Tune's names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpctrain.lazy_names import at_first_use

if TYPE_CHECKING:
    from hpctrain.tune.schedulers.asha import ASHAScheduler as ASHAScheduler
    from hpctrain.tune.schedulers.asha import AsyncHyperBandScheduler as AsyncHyperBandScheduler
    from hpctrain.tune.schedulers.hyperband import HyperBandScheduler as HyperBandScheduler
    from hpctrain.tune.schedulers.median import MedianStoppingRule as MedianStoppingRule
    from hpctrain.tune.schedulers.pbt import PopulationBasedTraining as PopulationBasedTraining
    from hpctrain.tune.schedulers.scheduler import Exploit as Exploit
    from hpctrain.tune.schedulers.scheduler import FIFOScheduler as FIFOScheduler
    from hpctrain.tune.schedulers.scheduler import Population as Population
    from hpctrain.tune.schedulers.scheduler import TrialScheduler as TrialScheduler

_HOME_OF = {
    "ASHAScheduler": "asha",
    "AsyncHyperBandScheduler": "asha",
    "Exploit": "scheduler",
    "FIFOScheduler": "scheduler",
    "HyperBandScheduler": "hyperband",
    "MedianStoppingRule": "median",
    "Population": "scheduler",
    "PopulationBasedTraining": "pbt",
    "TrialScheduler": "scheduler",
}

__all__ = sorted(_HOME_OF)

__getattr__, __dir__ = at_first_use(__name__, _HOME_OF)
