"""``ray.train.tensorflow.keras``: the callback of `hpctrain.tensorflow`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpctrain.lazy_names import at_first_use

if TYPE_CHECKING:
    from hpctrain.tensorflow.callback import ReportCheckpointCallback as ReportCheckpointCallback

__all__ = ["ReportCheckpointCallback"]

__getattr__, __dir__ = at_first_use(__name__, {"ReportCheckpointCallback": ".callback"})
