"""What `hpctrain.xgboost` and `hpctrain.lightgbm` share: boosting rounds over datasets.

Importing this loads neither of the libraries.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpctrain.gbdt.boosting import EarlyStopping as EarlyStopping
    from hpctrain.gbdt.features import Features as Features
    from hpctrain.gbdt.trainer import GBDTTrainer as GBDTTrainer

_HOME_OF = {
    "EarlyStopping": "boosting",
    "Features": "features",
    "GBDTTrainer": "trainer",
}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    """Import a public name at its first use (PEP 562)."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'hpctrain.gbdt' has no attribute {name!r}")
    value = getattr(import_module(f"hpctrain.gbdt.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return __all__
