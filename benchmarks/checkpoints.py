"""Every benchmark of saving and loading checkpoints, with one command.

::

    python benchmarks/checkpoints.py                    # everything, about half an hour
    python benchmarks/checkpoints.py --only save load
    python benchmarks/checkpoints.py --only save load --sizes 64
    python benchmarks/checkpoints.py --only async-gpu   # where there is a GPU
"""

from __future__ import annotations

import shutil
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import replace

import checkpoint_async
import checkpoint_goodput
import checkpoint_load
import checkpoint_save
import checkpoint_staging
from arms import Measured, OthersShare
from spine import run_rows


def _with_others_share(
    measure: Callable[[Namespace], Iterator[Measured]],
) -> Callable[[Namespace], Iterator[Measured]]:
    def rows(arguments: Namespace) -> Iterator[Measured]:
        others = OthersShare()
        for row in measure(arguments):
            yield replace(row, others_share=others.take())

    return rows


ROWS: dict[str, Callable[[Namespace], Iterator[Measured]]] = {
    "save": checkpoint_save.measure,
    "load": checkpoint_load.measure,
    "async": checkpoint_async.measure,
    "staging": checkpoint_staging.measure,
    "goodput": checkpoint_goodput.measure,
}
if shutil.which("nvidia-smi") is not None:
    ROWS["async-gpu"] = checkpoint_async.measure_on_gpu

if __name__ == "__main__":
    run_rows(
        {name: _with_others_share(measure) for name, measure in ROWS.items()},
        description=__doc__,
        rounds=7,
    )
