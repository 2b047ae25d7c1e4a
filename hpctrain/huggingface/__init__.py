"""Hugging Face: Transformers and Accelerate on MPI ranks.

Importing this imports neither transformers nor accelerate nor torch; using it in a worker does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpctrain.lazy_names import at_first_use

if TYPE_CHECKING:
    from hpctrain.huggingface.accelerate_trainer import AccelerateTrainer as AccelerateTrainer
    from hpctrain.huggingface.backend import AccelerateBackend as AccelerateBackend
    from hpctrain.huggingface.callback import ReportCallback as ReportCallback
    from hpctrain.huggingface.checkpoint import TransformersCheckpoint as TransformersCheckpoint
    from hpctrain.huggingface.config import AccelerateConfig as AccelerateConfig
    from hpctrain.huggingface.predictor import TransformersPredictor as TransformersPredictor
    from hpctrain.huggingface.prepare import prepare_trainer as prepare_trainer
    from hpctrain.huggingface.transformers_trainer import (
        TransformersTrainer as TransformersTrainer,
    )

    RayTrainReportCallback = ReportCallback
    HuggingFaceCheckpoint = TransformersCheckpoint
    HuggingFacePredictor = TransformersPredictor
    HuggingFaceTrainer = TransformersTrainer

_HOME_OF = {
    "AccelerateBackend": "backend",
    "AccelerateConfig": "config",
    "AccelerateTrainer": "accelerate_trainer",
    "HuggingFaceCheckpoint": "checkpoint:TransformersCheckpoint",
    "HuggingFacePredictor": "predictor:TransformersPredictor",
    "HuggingFaceTrainer": "transformers_trainer:TransformersTrainer",
    "RayTrainReportCallback": "callback:ReportCallback",
    "ReportCallback": "callback",
    "TransformersCheckpoint": "checkpoint",
    "TransformersPredictor": "predictor",
    "TransformersTrainer": "transformers_trainer",
    "prepare_trainer": "prepare",
}

__all__ = sorted(_HOME_OF)

__getattr__, __dir__ = at_first_use(__name__, _HOME_OF)
