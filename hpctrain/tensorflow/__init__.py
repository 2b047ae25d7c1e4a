"""TensorFlow: ``TensorflowTrainer`` and what its training functions call.

Importing this does not import TensorFlow; using it in a worker does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpctrain.tensorflow.callback import ReportCheckpointCallback as ReportCheckpointCallback
    from hpctrain.tensorflow.checkpoint import TensorflowCheckpoint as TensorflowCheckpoint
    from hpctrain.tensorflow.config import TensorflowConfig as TensorflowConfig
    from hpctrain.tensorflow.predictor import TensorflowPredictor as TensorflowPredictor
    from hpctrain.tensorflow.prepare import prepare_dataset_shard as prepare_dataset_shard
    from hpctrain.tensorflow.trainer import TensorflowTrainer as TensorflowTrainer

_HOME_OF = {
    "ReportCheckpointCallback": "callback",
    "TensorflowCheckpoint": "checkpoint",
    "TensorflowConfig": "config",
    "TensorflowPredictor": "predictor",
    "TensorflowTrainer": "trainer",
    "prepare_dataset_shard": "prepare",
}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    """Import a public name at its first use (PEP 562)."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'hpctrain.tensorflow' has no attribute {name!r}")
    value = getattr(import_module(f"hpctrain.tensorflow.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return __all__
