"""Every benchmark of the tree trainers, with one command.

::

    python benchmarks/trees.py                          # 1M x 28, 50 rounds: some minutes
    python benchmarks/trees.py --only xgboost --sizes 50 --rounds 1     # 50 thousand rows
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial

import boosting
from arms import Measured
from spine import run_rows

ROWS: dict[str, Callable[[Namespace], Iterator[Measured]]] = {
    library: partial(boosting.measure, library=library) for library in ("xgboost", "lightgbm")
}

if __name__ == "__main__":
    run_rows(ROWS, description=__doc__, rounds=5)
