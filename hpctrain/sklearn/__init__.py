"""Scikit-learn: trainer, predictor and checkpoints, and a joblib backend over MPI ranks.

Importing this does not import sklearn; using it in a worker does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpctrain.sklearn.checkpoint import SklearnCheckpoint as SklearnCheckpoint
    from hpctrain.sklearn.parallel import parallel_over_ranks as parallel_over_ranks
    from hpctrain.sklearn.predictor import SklearnPredictor as SklearnPredictor
    from hpctrain.sklearn.trainer import SklearnTrainer as SklearnTrainer

_HOME_OF = {
    "SklearnCheckpoint": "checkpoint",
    "SklearnPredictor": "predictor",
    "SklearnTrainer": "trainer",
    "parallel_over_ranks": "parallel",
}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    """Import a public name at its first use (PEP 562)."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'hpctrain.sklearn' has no attribute {name!r}")
    value = getattr(import_module(f"hpctrain.sklearn.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return __all__
