"""``ray.tune.schedulers.async_hyperband``: the same classes as in `hpctrain.tune.schedulers`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpctrain.lazy_names import at_first_use

if TYPE_CHECKING:
    from hpctrain.tune.schedulers.asha import ASHAScheduler as ASHAScheduler
    from hpctrain.tune.schedulers.asha import AsyncHyperBandScheduler as AsyncHyperBandScheduler

_NAMES = ("ASHAScheduler", "AsyncHyperBandScheduler")

__all__ = list(_NAMES)

__getattr__, __dir__ = at_first_use(__name__, dict.fromkeys(_NAMES, ".asha"))
