"""PyTorch Lightning: what a Lightning script adds, and ``LightningTrainer``.

Importing this does not import Lightning; using it in a worker does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpctrain.lazy_names import at_first_use

if TYPE_CHECKING:
    from hpctrain.lightning.callback import ReportCallback as ReportCallback
    from hpctrain.lightning.checkpoint import LightningCheckpoint as LightningCheckpoint
    from hpctrain.lightning.checkpoint import get_checkpoint_path as get_checkpoint_path
    from hpctrain.lightning.config import LightningConfig as LightningConfig
    from hpctrain.lightning.config import LightningConfigBuilder as LightningConfigBuilder
    from hpctrain.lightning.environment import HpctrainEnvironment as HpctrainEnvironment
    from hpctrain.lightning.predictor import LightningPredictor as LightningPredictor
    from hpctrain.lightning.prepare import prepare_trainer as prepare_trainer
    from hpctrain.lightning.strategies import RayDDPStrategy as RayDDPStrategy
    from hpctrain.lightning.strategies import RayDeepSpeedStrategy as RayDeepSpeedStrategy
    from hpctrain.lightning.strategies import RayFSDPStrategy as RayFSDPStrategy
    from hpctrain.lightning.trainer import LightningTrainer as LightningTrainer

    RayTrainReportCallback = ReportCallback
    RayLightningEnvironment = HpctrainEnvironment

_HOME_OF = {
    "HpctrainEnvironment": "environment",
    "LightningCheckpoint": "checkpoint",
    "LightningConfig": "config",
    "LightningConfigBuilder": "config",
    "LightningPredictor": "predictor",
    "LightningTrainer": "trainer",
    "RayDDPStrategy": "strategies",
    "RayDeepSpeedStrategy": "strategies",
    "RayFSDPStrategy": "strategies",
    "RayLightningEnvironment": "environment:HpctrainEnvironment",
    "RayTrainReportCallback": "callback:ReportCallback",
    "ReportCallback": "callback",
    "get_checkpoint_path": "checkpoint",
    "prepare_trainer": "prepare",
}

__all__ = sorted(_HOME_OF)

__getattr__, __dir__ = at_first_use(__name__, _HOME_OF)
