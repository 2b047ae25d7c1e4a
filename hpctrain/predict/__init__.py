"""Scoring: predictors, and `BatchPredictor`, which runs one on every rank.

The predictors of a framework are in its own package: ``hpctrain.xgboost.XGBoostPredictor``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpctrain.lazy_names import at_first_use

if TYPE_CHECKING:
    from hpctrain.predict.batch_predictor import BatchPredictor as BatchPredictor
    from hpctrain.predict.predictor import Predictor as Predictor
    from hpctrain.predict.predictor import (
        PredictorNotSerializableException as PredictorNotSerializableException,
    )

_HOME_OF = {
    "BatchPredictor": "batch_predictor",
    "Predictor": "predictor",
    "PredictorNotSerializableException": "predictor",
}

__all__ = sorted(_HOME_OF)

__getattr__, __dir__ = at_first_use(__name__, _HOME_OF)
