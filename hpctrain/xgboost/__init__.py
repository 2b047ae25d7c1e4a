"""XGBoost: trainer, predictor and checkpoints, and a callback for training functions.

Importing this does not import xgboost; using it in a worker does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpctrain.lazy_names import at_first_use

if TYPE_CHECKING:
    from hpctrain.xgboost.backend import XGBoostBackend as XGBoostBackend
    from hpctrain.xgboost.callback import TrainReportCallback as TrainReportCallback
    from hpctrain.xgboost.checkpoint import XGBoostCheckpoint as XGBoostCheckpoint
    from hpctrain.xgboost.config import XGBoostConfig as XGBoostConfig
    from hpctrain.xgboost.predictor import XGBoostPredictor as XGBoostPredictor
    from hpctrain.xgboost.trainer import XGBoostTrainer as XGBoostTrainer

    RayTrainReportCallback = TrainReportCallback

_HOME_OF = {
    "RayTrainReportCallback": "callback:TrainReportCallback",
    "TrainReportCallback": "callback",
    "XGBoostBackend": "backend",
    "XGBoostCheckpoint": "checkpoint",
    "XGBoostConfig": "config",
    "XGBoostPredictor": "predictor",
    "XGBoostTrainer": "trainer",
}

__all__ = sorted(_HOME_OF)

__getattr__, __dir__ = at_first_use(__name__, _HOME_OF)
