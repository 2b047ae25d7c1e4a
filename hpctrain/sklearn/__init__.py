"""Scikit-learn: trainer, predictor and checkpoints, and a joblib backend over MPI ranks.

Importing this does not import sklearn; using it in a worker does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpctrain.lazy_names import at_first_use

if TYPE_CHECKING:
    from hpctrain.sklearn.checkpoint import SklearnCheckpoint as SklearnCheckpoint
    from hpctrain.sklearn.parallel import parallel_over_ranks as parallel_over_ranks
    from hpctrain.sklearn.predictor import SklearnPredictor as SklearnPredictor
    from hpctrain.sklearn.trainer import SklearnTrainer as SklearnTrainer

_HOME_OF = {
    "SklearnCheckpoint": "checkpoint",
    "SklearnPredictor": "predictor",
    "SklearnTrainer": "trainer",
    "parallel_over_ranks": "parallel",
}

__all__ = sorted(_HOME_OF)

__getattr__, __dir__ = at_first_use(__name__, _HOME_OF)
