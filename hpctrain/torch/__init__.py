"""PyTorch: ``TorchTrainer`` and what its training functions call.

Importing this does not import torch; using it in a worker does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpctrain.lazy_names import at_first_use

if TYPE_CHECKING:
    from hpctrain.torch.amp import accelerate as accelerate
    from hpctrain.torch.amp import backward as backward
    from hpctrain.torch.amp import prepare_optimizer as prepare_optimizer
    from hpctrain.torch.checkpoint import TorchCheckpoint as TorchCheckpoint
    from hpctrain.torch.config import TorchConfig as TorchConfig
    from hpctrain.torch.detection_predictor import (
        TorchDetectionPredictor as TorchDetectionPredictor,
    )
    from hpctrain.torch.device import get_device as get_device
    from hpctrain.torch.device import get_devices as get_devices
    from hpctrain.torch.loop import LoopState as LoopState
    from hpctrain.torch.loop import loop_state as loop_state
    from hpctrain.torch.predictor import TorchPredictor as TorchPredictor
    from hpctrain.torch.prepare import enable_reproducibility as enable_reproducibility
    from hpctrain.torch.prepare import prepare_data_loader as prepare_data_loader
    from hpctrain.torch.prepare import prepare_model as prepare_model
    from hpctrain.torch.process_group import TorchBackend as TorchBackend
    from hpctrain.torch.state.dcp.planner import StatePlanner as StatePlanner
    from hpctrain.torch.state.dcp.reader import StateReader as StateReader
    from hpctrain.torch.state.dcp.writer import StateWriter as StateWriter
    from hpctrain.torch.state.export.export import Exported as Exported
    from hpctrain.torch.state.export.export import export_state as export_state
    from hpctrain.torch.state.load import load_state as load_state
    from hpctrain.torch.state.report import report_state as report_state
    from hpctrain.torch.state.save import save_state as save_state
    from hpctrain.torch.trainer import TorchTrainer as TorchTrainer

_HOME_OF = {
    "Exported": "state.export.export",
    "LoopState": "loop",
    "StatePlanner": "state.dcp.planner",
    "StateReader": "state.dcp.reader",
    "StateWriter": "state.dcp.writer",
    "TorchBackend": "process_group",
    "TorchCheckpoint": "checkpoint",
    "TorchConfig": "config",
    "TorchDetectionPredictor": "detection_predictor",
    "TorchPredictor": "predictor",
    "TorchTrainer": "trainer",
    "accelerate": "amp",
    "backward": "amp",
    "enable_reproducibility": "prepare",
    "export_state": "state.export.export",
    "get_device": "device",
    "get_devices": "device",
    "load_state": "state.load",
    "loop_state": "loop",
    "prepare_data_loader": "prepare",
    "prepare_model": "prepare",
    "prepare_optimizer": "amp",
    "report_state": "state.report",
    "save_state": "state.save",
}

__all__ = sorted(_HOME_OF)

__getattr__, __dir__ = at_first_use(__name__, _HOME_OF)
