"""``ray.tune.integration.xgboost``: the callback of `hpctrain.xgboost`, by Ray Tune's name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpctrain.lazy_names import at_first_use

if TYPE_CHECKING:
    from hpctrain.xgboost.callback import TrainReportCallback

    TuneReportCheckpointCallback = TrainReportCallback

_HOME_OF = {"TuneReportCheckpointCallback": "...xgboost.callback:TrainReportCallback"}

__all__ = sorted(_HOME_OF)

__getattr__, __dir__ = at_first_use(__name__, _HOME_OF)
