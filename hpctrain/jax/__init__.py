"""JAX: its trainer, predictor and checkpoints.

Importing this does not import jax; using it in a worker does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpctrain.jax.backend import JaxBackend as JaxBackend
    from hpctrain.jax.checkpoint import JaxCheckpoint as JaxCheckpoint
    from hpctrain.jax.config import JaxConfig as JaxConfig
    from hpctrain.jax.predictor import JaxPredictor as JaxPredictor
    from hpctrain.jax.trainer import JaxTrainer as JaxTrainer

_HOME_OF = {
    "JaxBackend": "backend",
    "JaxCheckpoint": "checkpoint",
    "JaxConfig": "config",
    "JaxPredictor": "predictor",
    "JaxTrainer": "trainer",
}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    """Import a public name at its first use (PEP 562)."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'hpctrain.jax' has no attribute {name!r}")
    value = getattr(import_module(f"hpctrain.jax.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names."""
    return __all__
