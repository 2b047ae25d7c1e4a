"""``ray.air``: the names that Ray 2.6 had there, for scripts of that time.

They are the same classes as in `hpctrain`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpctrain.lazy_names import at_first_use

if TYPE_CHECKING:
    from hpctrain.checkpoint import Checkpoint as Checkpoint
    from hpctrain.config import CheckpointConfig as CheckpointConfig
    from hpctrain.config import FailureConfig as FailureConfig
    from hpctrain.config import RunConfig as RunConfig
    from hpctrain.config import SyncConfig as SyncConfig
    from hpctrain.result import Result as Result
    from hpctrain.scaling_config import ScalingConfig as ScalingConfig

DataBatchType = Any
"""For annotations: a NumPy array, a dict of them, a pandas DataFrame or a pyarrow Table."""

_HOME_OF = {
    "Checkpoint": ".checkpoint",
    "CheckpointConfig": ".config",
    "FailureConfig": ".config",
    "Result": ".result",
    "RunConfig": ".config",
    "ScalingConfig": ".config",
    "SyncConfig": ".config",
}

__all__ = [*sorted(_HOME_OF), "DataBatchType"]

__getattr__, __dir__ = at_first_use(__name__, _HOME_OF)
