"""JAX: its trainer, predictor and checkpoints.

Importing this does not import jax; using it in a worker does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpctrain.lazy_names import at_first_use

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

__getattr__, __dir__ = at_first_use(__name__, _HOME_OF)
