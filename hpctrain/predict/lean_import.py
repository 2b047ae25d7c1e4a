"""Import a framework without what it imports besides and scoring does not need."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

_RANK_MODULE = "hpctrain.worker.main"


@contextmanager
def without(packages: Sequence[str]) -> Iterator[None]:
    """Let imports of packages fail inside the block, as where they are not installed.

    Not collective. XGBoost and LightGBM import scikit-learn for estimators of theirs, where it is
    there. With SciPy's statistics that is most of the second that every rank takes to start.

    Only in a process that is there for this run alone: elsewhere somebody may want the estimators.
    What has been imported already stays.
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
