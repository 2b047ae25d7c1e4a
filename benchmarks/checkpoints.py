"""Every benchmark of saving and loading checkpoints, with one command.

::

    python benchmarks/checkpoints.py                    # everything, about half an hour
    python benchmarks/checkpoints.py --only save load
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator

import checkpoint_async
import checkpoint_goodput
import checkpoint_load
import checkpoint_save
import checkpoint_staging
from arms import Measured
from spine import run_rows

ROWS: dict[str, Callable[[Namespace], Iterator[Measured]]] = {
    "save": checkpoint_save.measure,
    "load": checkpoint_load.measure,
    "async": checkpoint_async.measure,
    "staging": checkpoint_staging.measure,
    "goodput": checkpoint_goodput.measure,
}

if __name__ == "__main__":
    run_rows(ROWS, description=__doc__, rounds=7)
