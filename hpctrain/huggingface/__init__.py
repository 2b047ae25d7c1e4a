"""Hugging Face: Transformers and Accelerate on MPI ranks.

Importing this imports neither transformers nor accelerate nor torch; using it in a worker does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpctrain.huggingface.accelerate_trainer import AccelerateTrainer as AccelerateTrainer
    from hpctrain.huggingface.callback import ReportCallback as ReportCallback
    from hpctrain.huggingface.checkpoint import TransformersCheckpoint as TransformersCheckpoint
    from hpctrain.huggingface.config import AccelerateConfig as AccelerateConfig
    from hpctrain.huggingface.predictor import TransformersPredictor as TransformersPredictor
    from hpctrain.huggingface.prepare import prepare_trainer as prepare_trainer
    from hpctrain.huggingface.transformers_trainer import (
        TransformersTrainer as TransformersTrainer,
    )

_HOME_OF = {
    "AccelerateConfig": "config",
    "AccelerateTrainer": "accelerate_trainer",
    "ReportCallback": "callback",
    "TransformersCheckpoint": "checkpoint",
    "TransformersPredictor": "predictor",
    "TransformersTrainer": "transformers_trainer",
    "prepare_trainer": "prepare",
}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    """Import a public name at its first use (PEP 562)."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'hpctrain.huggingface' has no attribute {name!r}")
    value = getattr(import_module(f"hpctrain.huggingface.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return __all__
