"""TensorFlow: ``TensorflowTrainer`` and what its training functions call.

Importing this does not import TensorFlow; using it in a worker does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpctrain.lazy_names import at_first_use

if TYPE_CHECKING:
    from hpctrain.tensorflow.backend import TensorflowBackend as TensorflowBackend
    from hpctrain.tensorflow.callback import ReportCheckpointCallback as ReportCheckpointCallback
    from hpctrain.tensorflow.checkpoint import TensorflowCheckpoint as TensorflowCheckpoint
    from hpctrain.tensorflow.config import TensorflowConfig as TensorflowConfig
    from hpctrain.tensorflow.predictor import TensorflowPredictor as TensorflowPredictor
    from hpctrain.tensorflow.prepare import prepare_dataset_shard as prepare_dataset_shard
    from hpctrain.tensorflow.trainer import TensorflowTrainer as TensorflowTrainer

_HOME_OF = {
    "ReportCheckpointCallback": "callback",
    "TensorflowBackend": "backend",
    "TensorflowCheckpoint": "checkpoint",
    "TensorflowConfig": "config",
    "TensorflowPredictor": "predictor",
    "TensorflowTrainer": "trainer",
    "prepare_dataset_shard": "prepare",
}

__all__ = sorted(_HOME_OF)

__getattr__, __dir__ = at_first_use(__name__, _HOME_OF)
