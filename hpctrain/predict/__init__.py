"""Scoring: predictors, and `BatchPredictor`, which runs one on every rank.

The predictors of a framework are in its own package: ``hpctrain.xgboost.XGBoostPredictor``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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


def __getattr__(name: str) -> Any:
    """Import a public name at its first use (PEP 562)."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'hpctrain.predict' has no attribute {name!r}")
    value = getattr(import_module(f"hpctrain.predict.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return __all__
