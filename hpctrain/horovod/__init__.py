"""Horovod: its trainer and backend, elastic state, and `hpctrain install horovod`.

Importing this imports neither horovod nor torch; using it in a worker does. A checkpoint is one of
torch: `hpctrain.torch.TorchPredictor` predicts with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpctrain.lazy_names import at_first_use

if TYPE_CHECKING:
    from hpctrain.horovod.backend import HorovodBackend as HorovodBackend
    from hpctrain.horovod.config import HorovodConfig as HorovodConfig
    from hpctrain.horovod.state import elastic_state as elastic_state
    from hpctrain.horovod.trainer import HorovodTrainer as HorovodTrainer

_HOME_OF = {
    "HorovodBackend": "backend",
    "HorovodConfig": "config",
    "HorovodTrainer": "trainer",
    "elastic_state": "state",
}

__all__ = sorted(_HOME_OF)

__getattr__, __dir__ = at_first_use(__name__, _HOME_OF)
