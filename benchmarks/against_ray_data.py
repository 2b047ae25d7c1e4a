"""Operations on datasets, against Ray Data on the same two cores.

::

    python -m venv /tmp/ray && /tmp/ray/bin/pip install 'ray[data]'
    RAY_PYTHON=/tmp/ray/bin/python python benchmarks/against_ray_data.py

The whole script counts, from the start of Python to its end, and both have to give the same
answer. ``--sizes`` are thousands of rows of 28 numbers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
from arms import PROGRAMS, Goal, Measured, Row, alternate, command
from spine import run_rows

THOUSANDS_OF_ROWS = 1000
FASTER, AIM = 3, 10
# Ray alone takes some minutes where others use the machine too.
TIMEOUT_S = 900.0


def measure(arguments: Namespace, *, operation: str) -> Iterator[Measured]:
    ray = os.environ.get("RAY_PYTHON")
    if ray is None:
        raise SystemExit("RAY_PYTHON is not set: the Python of an environment that has Ray.")
    for thousands in arguments.sizes or (THOUSANDS_OF_ROWS,):
        with tempfile.TemporaryDirectory(prefix="hpctrain-bench-") as folder:
            rows = Path(folder, "rows.parquet")
            writer = [sys.executable, PROGRAMS / "parquet_rows.py", rows, str(thousands)]
            subprocess.run(writer, check=True, timeout=TIMEOUT_S)
            answers = [Path(folder, "hpctrain.json"), Path(folder, "ray.json")]

            def arm(name: str, python: str, library: str, answer: Path, rows: Path = rows):
                argv = [python, PROGRAMS / "data_operations.py", library, operation, rows, answer]
                return command(name, argv, tree=arguments.tree, timeout_s=TIMEOUT_S)

            measured = alternate(
                Row(
                    name=f"{operation} {thousands}k rows",
                    ours=arm("hpctrain", sys.executable, "hpctrain.data", answers[0]),
                    others=[arm("Ray Data", ray, "ray.data", answers[1])],
                    goals=[Goal(against="Ray Data", factor=1 / times) for times in (FASTER, AIM)],
                ),
                rounds=arguments.rounds,
                say=arguments.say,
            )
            ours, theirs = (json.loads(answer.read_text()) for answer in answers)
            # Sums of float32 are in another order.
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
            yield measured


ROWS: dict[str, Callable[[Namespace], Iterator[Measured]]] = {
    name: partial(measure, operation=name)
    for name in ("batches", "rows", "groups", "sort", "aggregates")
}

if __name__ == "__main__":
    run_rows(ROWS, description=__doc__, rounds=3)
