"""A framework of one's own, NumPy arrays that ranks average, and the backend that sets it up.

``examples/own_framework.py`` trains with it, and docs/own-framework.rst tells how it came about.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpctrain import BackendConfig, ConfigError
from hpctrain.backend import Backend, BackendContext
from hpctrain.world import Communicator

Arrays = list[np.ndarray[Any, Any]]

_comm: Communicator | None = None
_dtype = "float64"


def average(arrays: Sequence[np.ndarray[Any, Any]]) -> Arrays:
    """Return the mean of each array over all ranks. Collective."""
    assert _comm is not None, "average() is for the training function of a run with AveragingConfig"
    sent = [array.astype(_dtype) for array in arrays]
    sums = _comm.allreduce(sent, lambda a, b: [x + y for x, y in zip(a, b, strict=True)])
    return [(x / _comm.size).astype(a.dtype) for x, a in zip(sums, arrays, strict=True)]


class AveragingBackend(Backend):
    """Gives the ranks' communicator to `average`."""

    def on_start(self, context: BackendContext, config: AveragingConfig) -> None:
        global _comm, _dtype
        # It is for the backend alone, so nothing else can come in between.
        _comm, _dtype = context.comm, config.dtype
        # What ranks must agree on is best looked at before the first step.
        if len(versions := set(context.comm.allgather(np.__version__))) > 1:
            raise ConfigError(f"ranks have NumPy {sorted(versions)}; install one on all nodes.")

    def on_shutdown(self, context: BackendContext, config: AveragingConfig) -> None:
        global _comm
        _comm = None


@dataclass(frozen=True, kw_only=True)
class AveragingConfig(BackendConfig):
    dtype: str = "float64"
    """What is sent: float32 is half as much, float16 a quarter."""

    @property
    def backend_cls(self) -> type[Backend]:
        return AveragingBackend
