"""``ray.tune.schedulers.trial_scheduler``: the same classes as in `hpctrain.tune.schedulers`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpctrain.lazy_names import at_first_use

if TYPE_CHECKING:
    from hpctrain.tune.schedulers.scheduler import FIFOScheduler as FIFOScheduler
    from hpctrain.tune.schedulers.scheduler import TrialScheduler as TrialScheduler

_NAMES = ("FIFOScheduler", "TrialScheduler")

__all__ = list(_NAMES)

__getattr__, __dir__ = at_first_use(__name__, dict.fromkeys(_NAMES, ".scheduler"))
