"""Every benchmark of preprocessors, with one command.

::

    python benchmarks/preprocessors.py                      # 2 GB of float32, [17.9M, 28]
    python benchmarks/preprocessors.py --sizes 1000000      # as many rows
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator

import fit_scaler
from arms import Measured
from spine import run_rows

ROWS: dict[str, Callable[[Namespace], Iterator[Measured]]] = {"fit-scaler": fit_scaler.measure}

if __name__ == "__main__":
    run_rows(ROWS, description=__doc__, rounds=5)
