"""Batch prediction, HDF5 to HDF5, against the loop that one would write.

::

    python benchmarks/predict.py --rounds 1             # a quarter of an hour, 7 GB of rows
    python benchmarks/predict.py --sizes 5000000 --only xgboost

`--sizes` are rows; by default 5 million, and as many as one process scores in about a minute. Two
ranks with a core each, and the whole job counts, from the start of Python to its end. Of rows that
one process scores in a minute two ranks need at most 1/1.8 of the time. With fewer, the start
counts: the limit is then the start of one process, up to its first row, and half of what it needs
from there.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from arms import PROGRAMS, Goal, Measured, Sample, child_environment, judge, mpiexec, run_command
from spine import run_rows

SIZES = {
    "mlp": (5_000_000, 25_000_000),
    "xgboost": (5_000_000, 65_000_000),
    "lightgbm": (5_000_000, 19_000_000),
}
BATCH_SIZE = 4096
RANKS = 2
SPEED_UP = 1.8
START_FACTOR = 1.05
LONG_S = 45.0
_CHUNK_ROWS = 1_000_000


def make_rows(path: Path, rows: int) -> None:
    """Write rows of 28 numbers, contiguous, as simulations do."""
    import h5py
    import numpy as np

    random = np.random.default_rng(1)
    with h5py.File(path, "w") as file:
        x = file.create_dataset("x", (rows, 28), dtype="f4")
        block = random.normal(size=(min(rows, _CHUNK_ROWS), 28)).astype("f4")
        for start in range(0, rows, len(block)):
            x[start : start + len(block)] = block[: rows - start]


class Job:
    """One way to score the rows; what it took, and when it scored its first row."""

    def __init__(self, arguments: Namespace, words: list[Any]) -> None:
        self._arguments = arguments
        self._words = words

    def run(self) -> tuple[Sample, dict[str, Any]]:
        with tempfile.TemporaryDirectory(prefix="hpctrain-bench-") as folder:
            answer = Path(folder, "answer.json")
            words = [answer if word == "ANSWER" else word for word in self._words]
            begun = time.time()
            sample = run_command(
                words, cwd=folder, env=child_environment(self._arguments.tree), timeout_s=1200
            )
            times = json.loads(answer.read_bytes())
        times["start_s"] = times["first_row_at"] - begun
        return sample, times


def jobs(arguments: Namespace, kind: str, model: Path, rows: Path) -> dict[str, Job]:
    python = sys.executable
    common = [kind, model, rows, "scores.h5", BATCH_SIZE, "ANSWER"]
    by_hand = [python, PROGRAMS / "score_by_hand.py", *common]
    return {
        "hpctrain, 2 ranks": Job(
            arguments, [python, PROGRAMS / "score_on_ranks.py", *common, RANKS]
        ),
        "by hand, 1 process": Job(arguments, by_hand),
        "by hand, 2 processes": Job(
            arguments, [mpiexec(), "-n", RANKS, "-bind-to", "core", *by_hand]
        ),
    }


def measure_kind(arguments: Namespace, kind: str) -> Iterator[Measured]:
    for size in arguments.sizes or SIZES[kind]:
        with tempfile.TemporaryDirectory(prefix="hpctrain-bench-") as folder:
            rows, model = Path(folder, "rows.h5"), Path(folder, "model")
            model.mkdir()
            make_rows(rows, size)
            argv = [sys.executable, PROGRAMS / "scoring_models.py", kind, model]
            run_command(argv, cwd=folder, env=child_environment(arguments.tree), timeout_s=600)
            yield measure_size(arguments, kind, size, jobs(arguments, kind, model, rows))


def measure_size(arguments: Namespace, kind: str, size: int, arms: dict[str, Job]) -> Measured:
    ours, alone, _ = arms
    samples: dict[str, list[Sample]] = {name: [] for name in arms}
    starts: dict[str, list[float]] = {name: [] for name in arms}
    limits: list[Sample] = []
    name = f"{kind} {size / 1e6:g}M rows"
    for number in range(arguments.rounds + (arguments.rounds > 1)):
        for arm, job in arms.items():
            sample, times = job.run()
            if arguments.say is not None:
                start = times["start_s"]
                arguments.say(f"{name} round {number}: {arm} {sample.wall_s:.2f} s ({start:.2f})")
            if number == 0 and arguments.rounds > 1:
                continue
            samples[arm].append(sample)
            starts[arm].append(times["start_s"])
        if samples[alone] and len(limits) < len(samples[alone]):
            start = starts[alone][-1]
            limits.append(Sample(start + (samples[alone][-1].wall_s - start) / RANKS))
    is_long = median(sample.wall_s for sample in samples[alone]) >= LONG_S
    limit = "start + half the work"
    return judge(
        name,
        ours,
        {**samples, limit: limits},
        [
            Goal(against=alone, factor=1 / SPEED_UP)
            if is_long
            else Goal(against=limit, factor=START_FACTOR)
        ],
        notes={
            "speed-up": round(
                median(
                    b.wall_s / a.wall_s for a, b in zip(samples[ours], samples[alone], strict=True)
                ),
                2,
            ),
            "start to first row, s": {
                arm: round(median(taken), 2) for arm, taken in starts.items()
            },
        },
    )


def _row(kind: str) -> Callable[[Namespace], Iterator[Measured]]:
    return lambda arguments: measure_kind(arguments, kind)


ROWS = {kind: _row(kind) for kind in SIZES}

if __name__ == "__main__":
    run_rows(ROWS, description=__doc__, rounds=3)
