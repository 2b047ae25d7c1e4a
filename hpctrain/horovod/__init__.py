"""Horovod: its trainer and backend, elastic state, and `hpctrain install horovod`.

Importing this imports neither horovod nor torch; using it in a worker does. A checkpoint is one of
torch: `hpctrain.torch.TorchPredictor` predicts with it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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


def __getattr__(name: str) -> Any:
    """Import a public name at its first use (PEP 562)."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'hpctrain.horovod' has no attribute {name!r}")
    value = getattr(import_module(f"hpctrain.horovod.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return __all__
