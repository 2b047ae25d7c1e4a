"""``fit-scaler``: learn mean and deviation of a file's columns on two ranks.

Against scikit-learn's ``partial_fit`` in one process, with the same batches of the same file, which
is in the page cache. What is measured is the fit, the reading in it, but not the start of Python.
What more than twice the speed is not due to the second rank is told by the arm with one.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from arms import (
    PROGRAMS,
    Arm,
    Goal,
    Measured,
    Row,
    Sample,
    alternate,
    child_environment,
    mpiexec,
    run_command,
)

WIDTH = 28
# 2 GB of float32.
NUM_ROWS = 2_000_000_000 // (4 * WIDTH)
NUM_RANKS = 2
MUST = 1.7
AIM = 1.95
TOLERANCE = 1e-9


def measure(arguments: Namespace) -> Iterator[Measured]:
    for num_rows in arguments.sizes or (NUM_ROWS,):
        with tempfile.TemporaryDirectory(prefix="hpctrain-bench-") as folder:
            file = Path(folder, "rows.h5")
            _write(file, num_rows)
            yield _measure(arguments, file, num_rows)


def _measure(arguments: Namespace, file: Path, num_rows: int) -> Measured:
    learned: dict[str, list[float]] = {}

    def arm(name: str, how: str, num_ranks: int = 0) -> Arm:
        def sample() -> Sample:
            answer = file.with_suffix(".json")
            launcher = [mpiexec(), "-n", num_ranks] if num_ranks else []
            argv = [*launcher, sys.executable, PROGRAMS / "fit_scaler.py", how, file, answer]
            environment = child_environment(arguments.tree)
            run_command(argv, cwd=str(file.parent), env=environment, timeout_s=600)
            said = json.loads(answer.read_bytes())
            learned[name] = [*said["mean"], *said["std"]]
            return Sample(said["fit_s"])

        return Arm(name=name, measure=sample)

    reference = arm("partial_fit", "scikit-learn")
    row = Row(
        name=f"fit-scaler {num_rows * WIDTH * 4 / 1e9:.2g} GB",
        ours=arm(f"{NUM_RANKS} ranks", "hpctrain", NUM_RANKS),
        others=[reference, arm("1 rank", "hpctrain", 1)],
        goals=[Goal(against=reference.name, factor=1 / factor) for factor in (MUST, AIM)],
    )
    measured = alternate(row, rounds=arguments.rounds, say=arguments.say)
    for name, values in learned.items():
        pairs = zip(values, learned[reference.name], strict=True)
        if not all(math.isclose(a, b, rel_tol=TOLERANCE) for a, b in pairs):
            raise SystemExit(f"{name} and {reference.name} have learned different numbers")
    return measured


def _write(file: Path, num_rows: int) -> None:
    import h5py
    import numpy as np

    random = np.random.default_rng(1)
    block = random.normal(size=(65536, WIDTH)).astype(np.float32)
    with h5py.File(file, "w") as opened:
        rows = opened.create_dataset("x", shape=(num_rows, WIDTH), dtype=np.float32)
        for number, start in enumerate(range(0, num_rows, len(block))):
            count = min(len(block), num_rows - start)
            # Means that differ from block to block, and are not near 0, which no ratio likes.
            rows[start : start + count] = block[:count] + (3 + number % 7)
