"""``ray.tune.integration.xgboost``: the callback of `hpctrain.xgboost`, by Ray Tune's name."""

from __future__ import annotations

from hpctrain.lazy_names import at_first_use

_HOME_OF = {"TuneReportCheckpointCallback": "...xgboost.callback:TrainReportCallback"}

__all__ = sorted(_HOME_OF)

__getattr__, __dir__ = at_first_use(__name__, _HOME_OF)
