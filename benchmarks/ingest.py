"""Every benchmark of rows on their way from a file into batches, with one command.

::

    python benchmarks/ingest.py                             # everything, some minutes
    python benchmarks/ingest.py --only shuffled --sizes 1000000
    python benchmarks/ingest.py --json benchmarks/results/ingest.json

Rows have 28 floats of 32 bits (the Higgs data set has as many), 9 million of them, or what
``--sizes`` says, in HDF5; batches have 4096 rows.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator

import hdf5_rows
from arms import Measured
from spine import run_rows

ROWS: dict[str, Callable[[Namespace], Iterator[Measured]]] = {
    "in-order": hdf5_rows.measure_in_order,
    "shuffled": hdf5_rows.measure_shuffled,
    "loader": hdf5_rows.measure_loader,
    "cold": hdf5_rows.measure_cold,
    "compressed": hdf5_rows.measure_compressed,
}

if __name__ == "__main__":
    run_rows(ROWS, description=__doc__, rounds=9)
