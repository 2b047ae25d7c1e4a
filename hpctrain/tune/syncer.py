"""``ray.tune.syncer``: the same class as in `hpctrain`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpctrain.lazy_names import at_first_use

if TYPE_CHECKING:
    from hpctrain.config import SyncConfig as SyncConfig

_NAMES = ("SyncConfig",)

__all__ = list(_NAMES)

__getattr__, __dir__ = at_first_use(__name__, dict.fromkeys(_NAMES, "..config"))
