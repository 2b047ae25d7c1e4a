"""Import of a framework without optional packages that scoring does not need."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

_RANK_MODULE = "hpctrain.worker.main"


@contextmanager
def without(packages: Sequence[str]) -> Iterator[None]:
    """Make imports of packages fail inside the block, as if they were not installed.

    Not collective. XGBoost and LightGBM import scikit-learn, if it is installed, for their
    estimators. With SciPy's statistics that is most of the second that every rank takes to start.

    It has an effect only in a process of this run: other processes may need the estimators.
    Packages that are imported already stay.
    """
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    is_rank = spec is not None and spec.name == _RANK_MODULE
    blocked = [name for name in packages if is_rank and name not in sys.modules]
    modules: dict[str, Any] = sys.modules
    modules.update(dict.fromkeys(blocked))
    try:
        yield
    finally:
        for name in blocked:
            del modules[name]
