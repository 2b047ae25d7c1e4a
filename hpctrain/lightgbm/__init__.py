"""LightGBM: its trainer, predictor and checkpoints, and what training functions call.

Importing this does not import lightgbm; using it in a worker does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpctrain.lightgbm.callback import TrainReportCallback as TrainReportCallback
    from hpctrain.lightgbm.checkpoint import LightGBMCheckpoint as LightGBMCheckpoint
    from hpctrain.lightgbm.config import LightGBMConfig as LightGBMConfig
    from hpctrain.lightgbm.metrics import distributed_auc as distributed_auc
    from hpctrain.lightgbm.network import get_network_params as get_network_params
    from hpctrain.lightgbm.predictor import LightGBMPredictor as LightGBMPredictor
    from hpctrain.lightgbm.trainer import LightGBMTrainer as LightGBMTrainer

_HOME_OF = {
    "LightGBMCheckpoint": "checkpoint",
    "LightGBMConfig": "config",
    "LightGBMPredictor": "predictor",
    "LightGBMTrainer": "trainer",
    "TrainReportCallback": "callback",
    "distributed_auc": "metrics",
    "get_network_params": "network",
}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    """Import a public name at its first use (PEP 562)."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'hpctrain.lightgbm' has no attribute {name!r}")
    value = getattr(import_module(f"hpctrain.lightgbm.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return __all__
