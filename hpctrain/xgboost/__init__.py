"""Placeholder until the trainers are here."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpctrain.xgboost.predictor import XGBoostPredictor as XGBoostPredictor

_HOME_OF = {"XGBoostPredictor": "predictor"}

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
