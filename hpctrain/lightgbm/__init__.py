"""LightGBM: trainer, predictor and checkpoints, and functions for training functions.

Importing this does not import lightgbm; using it in a worker does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpctrain.lazy_names import at_first_use

if TYPE_CHECKING:
    from hpctrain.lightgbm.backend import LightGBMBackend as LightGBMBackend
    from hpctrain.lightgbm.callback import TrainReportCallback as TrainReportCallback
    from hpctrain.lightgbm.checkpoint import LightGBMCheckpoint as LightGBMCheckpoint
    from hpctrain.lightgbm.config import LightGBMConfig as LightGBMConfig
    from hpctrain.lightgbm.metrics import distributed_auc as distributed_auc
    from hpctrain.lightgbm.network import get_network_params as get_network_params
    from hpctrain.lightgbm.pandas_types import (
        normalize_pandas_for_lightgbm as normalize_pandas_for_lightgbm,
    )
    from hpctrain.lightgbm.predictor import LightGBMPredictor as LightGBMPredictor
    from hpctrain.lightgbm.trainer import LightGBMTrainer as LightGBMTrainer

    RayTrainReportCallback = TrainReportCallback

_HOME_OF = {
    "LightGBMBackend": "backend",
    "LightGBMCheckpoint": "checkpoint",
    "LightGBMConfig": "config",
    "LightGBMPredictor": "predictor",
    "LightGBMTrainer": "trainer",
    "RayTrainReportCallback": "callback:TrainReportCallback",
    "TrainReportCallback": "callback",
    "distributed_auc": "metrics",
    "get_network_params": "network",
    "normalize_pandas_for_lightgbm": "pandas_types",
}

__all__ = sorted(_HOME_OF)

__getattr__, __dir__ = at_first_use(__name__, _HOME_OF)
