"""Names of Ray Tune that hpctrain does not have: importing one says what to use instead."""

from __future__ import annotations

from hpctrain.lazy_names import at_first_use

__all__: list[str] = []

__getattr__, __dir__ = at_first_use(__name__, {})
