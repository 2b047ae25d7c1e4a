"""``ray.tune.schedulers.median_stopping_rule``: the same class as in `hpctrain.tune.schedulers`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpctrain.lazy_names import at_first_use

if TYPE_CHECKING:
    from hpctrain.tune.schedulers.median import MedianStoppingRule as MedianStoppingRule

_NAMES = ("MedianStoppingRule",)

__all__ = list(_NAMES)

__getattr__, __dir__ = at_first_use(__name__, dict.fromkeys(_NAMES, ".median"))
