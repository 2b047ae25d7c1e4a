"""``save``: a state that is on disk, with digests, and complete, on one and more ranks.

Against the quickest way in which as many bytes get to the disk at all: past the page cache, from
memory that is mapped, with one to four threads, and an fsync. Others save without digests.
"""

from __future__ import annotations

import json
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any, NamedTuple

from arms import PROGRAMS, Goal, Measured, Sample, child_environment, judge, mpiexec, output_of
from programs.commands import join_commands

MIB = 1024
TIMEOUT_S = 900.0
OURS, BEST = "ours", "raw, best"


def measure(arguments: Namespace) -> Iterator[Measured]:
    peers = ["torch.save", "safetensors", "DCP"]
    raw = ["raw:1", "raw:2", "raw:4"]
    yield from _rows(
        arguments,
        1,
        _Row("save, 1 rank", "sharded", "calm", [OURS, *raw, *peers], (1.1, 1.02)),
        _Row("beside a busy thread", "sharded", "busy", [OURS, *raw], (1.1, 1.02)),
    )
    ranks = [OURS, "raw:1", "raw:2", "DCP", "gather + torch.save"]
    yield from _rows(
        arguments,
        4,
        _Row("save sharded, 4 ranks", "sharded", "calm", ranks, (1.2, 1.08)),
        _Row("save DDP, 4 ranks", "replicated", "calm", [OURS, "raw:1", "raw:2"], (1.2,)),
    )


class _Row(NamedTuple):
    name: str
    kind: str
    neighbour: str
    arms: Sequence[str]
    factors: Sequence[float]


def _rows(arguments: Namespace, ranks: int, *rows: _Row) -> Iterator[Measured]:
    mib = (arguments.sizes or [MIB])[0]
    commands = [(mib, row.kind, arguments.rounds, row.neighbour, *row.arms) for row in rows]
    # /tmp may be memory; the directory of the benchmarks is on a disk.
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=arguments.tree) as folder:
        lines = _run(arguments, ranks, [folder, *join_commands(commands)])
    for number, row in enumerate(rows):
        yield _judge(row, [line for line in lines if line["command"] == number], mib, ranks)


def _judge(row: _Row, lines: Sequence[dict[str, Any]], mib: int, ranks: int) -> Measured:
    samples: dict[str, list[Sample]] = {arm: [] for arm in row.arms}
    for line in lines:
        # The first round finds code and memory for the first time.
        if line["round"] > 0:
            samples[line["arm"]].append(Sample(line["wall_s"], line["cpu_s"]))
    raw = [samples[arm] for arm in row.arms if arm.startswith("raw:")]
    samples[BEST] = [
        min(taken, key=lambda sample: sample.wall_s) for taken in zip(*raw, strict=True)
    ]
    goals = [Goal(against=BEST, factor=factor) for factor in row.factors]
    ours = [line for line in lines if line["arm"] == OURS]
    return judge(row.name, OURS, samples, goals, notes=_notes(ours, mib * 2**20, ranks))


def _run(arguments: Namespace, ranks: int, words: Sequence[Any]) -> list[dict[str, Any]]:
    start = [] if ranks == 1 else [mpiexec(), "-n", str(ranks)]
    argv = [*start, sys.executable, PROGRAMS / "save_on_ranks.py", *words]
    printed = output_of(argv, env=child_environment(arguments.tree), timeout_s=TIMEOUT_S)
    return [json.loads(line) for line in printed.splitlines() if line.startswith("{")]


def _notes(ours: Sequence[dict[str, Any]], size: int, ranks: int) -> dict[str, Any]:
    written = ours[-1]["written"]
    cpu_s = median(line["cpu_s"] for line in ours if line["round"] or len(ours) == 1)
    return {
        "CPU seconds / GiB": round(cpu_s / size * 2**30, 3),
        "bytes written / bytes of the state": round(sum(written) / size, 5),
        "bytes of the rank that writes most / mean": round(max(written) * ranks / sum(written), 5),
        "most extra memory / state of a rank": round(
            max(line["grown"] for line in ours) / (size / ranks), 4
        ),
    }
