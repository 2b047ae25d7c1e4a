"""Sweeps: many trials of a training function or a trainer, by Ray Tune's names.

The names are imported at their first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpctrain.lazy_names import at_first_use

if TYPE_CHECKING:
    from hpctrain.checkpoint import Checkpoint as Checkpoint
    from hpctrain.config import CheckpointConfig as CheckpointConfig
    from hpctrain.config import FailureConfig as FailureConfig
    from hpctrain.config import RunConfig as RunConfig
    from hpctrain.config import SyncConfig as SyncConfig
    from hpctrain.result import Result as Result
    from hpctrain.tune.domains import choice as choice
    from hpctrain.tune.domains import grid_search as grid_search
    from hpctrain.tune.domains import lograndint as lograndint
    from hpctrain.tune.domains import loguniform as loguniform
    from hpctrain.tune.domains import qlograndint as qlograndint
    from hpctrain.tune.domains import qloguniform as qloguniform
    from hpctrain.tune.domains import qrandint as qrandint
    from hpctrain.tune.domains import qrandn as qrandn
    from hpctrain.tune.domains import quniform as quniform
    from hpctrain.tune.domains import randint as randint
    from hpctrain.tune.domains import randn as randn
    from hpctrain.tune.domains import sample_from as sample_from
    from hpctrain.tune.domains import uniform as uniform
    from hpctrain.tune.result_grid import ResultGrid as ResultGrid
    from hpctrain.tune.trainable import with_parameters as with_parameters
    from hpctrain.tune.trainable import with_resources as with_resources
    from hpctrain.tune.tune_config import TuneConfig as TuneConfig
    from hpctrain.tune.tuner import Tuner as Tuner
    from hpctrain.worker.context import get_checkpoint as get_checkpoint
    from hpctrain.worker.context import get_context as get_context
    from hpctrain.worker.context import report as report

_HOME_OF = {
    "Checkpoint": ".checkpoint",
    "CheckpointConfig": ".config",
    "FailureConfig": ".config",
    "Result": ".result",
    "ResultGrid": "result_grid",
    "RunConfig": ".config",
    "SyncConfig": ".config",
    "TuneConfig": "tune_config",
    "Tuner": "tuner",
    "choice": "domains",
    "get_checkpoint": ".worker.context",
    "get_context": ".worker.context",
    "grid_search": "domains",
    "lograndint": "domains",
    "loguniform": "domains",
    "qlograndint": "domains",
    "qloguniform": "domains",
    "qrandint": "domains",
    "qrandn": "domains",
    "quniform": "domains",
    "randint": "domains",
    "randn": "domains",
    "report": ".worker.context",
    "sample_from": "domains",
    "uniform": "domains",
    "with_parameters": "trainable",
    "with_resources": "trainable",
}

# What is hpctrain's own is there by these names too, and listed with hpctrain.
__all__ = sorted(name for name, home in _HOME_OF.items() if not home.startswith("."))

__getattr__, __dir__ = at_first_use(__name__, _HOME_OF)
