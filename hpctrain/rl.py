"""``ray.train.rl`` has no counterpart: its names raise an error that names a replacement."""

from __future__ import annotations

from hpctrain.lazy_names import at_first_use

__all__: list[str] = []

__getattr__, __dir__ = at_first_use(__name__, {})
