"""XGBoost: its trainer, predictor and checkpoints, and what training functions call.

Importing this does not import xgboost; using it in a worker does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpctrain.xgboost.callback import TrainReportCallback as TrainReportCallback
    from hpctrain.xgboost.checkpoint import XGBoostCheckpoint as XGBoostCheckpoint
    from hpctrain.xgboost.config import XGBoostConfig as XGBoostConfig
    from hpctrain.xgboost.predictor import XGBoostPredictor as XGBoostPredictor
    from hpctrain.xgboost.trainer import XGBoostTrainer as XGBoostTrainer

_HOME_OF = {
    "TrainReportCallback": "callback",
    "XGBoostCheckpoint": "checkpoint",
    "XGBoostConfig": "config",
    "XGBoostPredictor": "predictor",
    "XGBoostTrainer": "trainer",
}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    """Import a public name at its first use (PEP 562)."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'hpctrain.xgboost' has no attribute {name!r}")
    value = getattr(import_module(f"hpctrain.xgboost.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return __all__
