"""``ray.train.huggingface.transformers``: the same names as in `hpctrain.huggingface`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpctrain.lazy_names import at_first_use

if TYPE_CHECKING:
    from hpctrain.huggingface import RayTrainReportCallback as RayTrainReportCallback
    from hpctrain.huggingface import TransformersCheckpoint as TransformersCheckpoint
    from hpctrain.huggingface import TransformersPredictor as TransformersPredictor
    from hpctrain.huggingface import TransformersTrainer as TransformersTrainer
    from hpctrain.huggingface import prepare_trainer as prepare_trainer

_HOME_OF = {
    "RayTrainReportCallback": ".callback:ReportCallback",
    "TransformersCheckpoint": ".checkpoint",
    "TransformersPredictor": ".predictor",
    "TransformersTrainer": ".transformers_trainer",
    "prepare_trainer": ".prepare",
}

__all__ = sorted(_HOME_OF)

__getattr__, __dir__ = at_first_use(__name__, _HOME_OF)
