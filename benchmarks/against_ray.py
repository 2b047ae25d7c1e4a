"""Batch prediction, Parquet to Parquet, against Ray Data on the same two cores.

::

    python -m venv /tmp/ray && /tmp/ray/bin/pip install 'ray[data]' torch safetensors xgboost-cpu
    RAY_PYTHON=/tmp/ray/bin/python python benchmarks/against_ray.py

The whole job counts, from the start of Python to its end. ``--sizes`` are thousands of rows.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from arms import PROGRAMS, Goal, Measured, Row, alternate, command
from spine import run_rows

THOUSANDS_OF_ROWS = 1000
BATCH_SIZE = 4096
RANKS = 2
FASTER, AIM = 5, 10
# Ray alone takes some minutes where others use the machine too.
TIMEOUT_S = 900.0


def measure(arguments: Namespace, *, kind: str) -> Iterator[Measured]:
    ray = os.environ.get("RAY_PYTHON")
    if ray is None:
        raise SystemExit("RAY_PYTHON is not set: the Python of an environment that has Ray.")
    for thousands in arguments.sizes or (THOUSANDS_OF_ROWS,):
        with tempfile.TemporaryDirectory(prefix="hpctrain-bench-") as folder:
            rows, model = Path(folder, "rows.parquet"), Path(folder, "model")
            model.mkdir()
            for argv in (["scoring_models.py", kind, model], ["parquet_rows.py", rows, thousands]):
                words = [sys.executable, PROGRAMS / argv[0], *map(str, argv[1:])]
                subprocess.run(words, check=True, timeout=TIMEOUT_S)
            common = [kind, model, rows]
            ours = [sys.executable, PROGRAMS / "score_on_ranks.py", *common, "scores.parquet"]
            rays = [ray, PROGRAMS / "score_with_ray.py", *common, f"{folder}/of-ray"]
            yield alternate(
                Row(
                    name=f"{kind} {thousands}k rows",
                    ours=command(
                        "hpctrain",
                        [*ours, str(BATCH_SIZE), "answer.json", str(RANKS)],
                        tree=arguments.tree,
                    ),
                    others=[
                        command(
                            "Ray Data",
                            [*rays, str(BATCH_SIZE), str(RANKS)],
                            tree=arguments.tree,
                            timeout_s=TIMEOUT_S,
                        )
                    ],
                    goals=[Goal(against="Ray Data", factor=1 / times) for times in (FASTER, AIM)],
                ),
                rounds=arguments.rounds,
                say=arguments.say,
            )


ROWS: dict[str, Callable[[Namespace], Iterator[Measured]]] = {
    kind: partial(measure, kind=kind) for kind in ("mlp", "xgboost")
}

if __name__ == "__main__":
    run_rows(ROWS, description=__doc__, rounds=3)
