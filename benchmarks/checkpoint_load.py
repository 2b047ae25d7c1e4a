"""``checkpoint_load``: states that are loaded into live tensors, verified, on one and more ranks.

Against the quickest way in which the same files can be read at all: through the page cache where
they are in it, past it where not, with one to four threads. Others load without verifying. Beside
the cold resume stands ``bare``, which hashes and copies what it reads, and does nothing else.
"""

from __future__ import annotations

import json
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from arms import PROGRAMS, Goal, Measured, Sample, child_environment, judge, mpiexec, output_of
from programs.commands import join_commands

MIB = 1024
TIMEOUT_S = 600.0
PEERS = ("torch.load", "torch.load mmap", "safetensors", "DCP")


def measure(arguments: Namespace) -> Iterator[Measured]:
    mib = (arguments.sizes or [MIB])[0]
    # /tmp may be memory; the directory of the benchmarks is on a disk.
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=arguments.tree) as folder:
        bench = _Bench(folder, arguments)
        peers = [f"torch:plain:{way}" for way in PEERS]
        warm = ["plain", *(f"raw:plain:{way}" for way in ("1w", "2w"))]
        cold = ["plain", *(f"raw:plain:{way}" for way in "124")]
        yield from bench.measure(
            1,
            [("plain", mib, "plain")],
            _Row("resume warm, 1 rank", "warm", warm, (2.0, 1.5), peers),
            _Row("resume cold, 1 rank", "cold", cold, (1.05, 1.0), ["bare:plain:4", *peers]),
        )
        raw = [f"raw:of 4:{way}" for way in "12"]
        yield from bench.measure(
            4,
            [("of 4", mib, "sharded"), ("replicated", mib, "replicated")],
            _Row("resume cold, 4 ranks", "cold", ["of 4", *raw], (1.15, 1.05)),
            _Row("replicated, 4 ranks", "cold", ["replicated"]),
        )
        yield from bench.measure(
            2,
            [("of 2", mib, "sharded")],
            _Row("reshard 4 to 2 ranks", "cold", ["of 4", "of 2"], (1.3, 1.1)),
        )
        yield from bench.measure(
            3,
            [("of 3", mib, "sharded")],
            _Row("reshard 2 to 3 ranks", "cold", ["of 2", "of 3"], (1.3, 1.1)),
        )


class _Row(NamedTuple):
    name: str
    kind: str
    arms: Sequence[str]
    """By turns; the first is compared with the best of the others in each round."""
    factors: Sequence[float] = ()
    peers: Sequence[str] = ()


class _Bench:
    def __init__(self, folder: str, arguments: Namespace) -> None:
        self._folder, self._arguments = folder, arguments

    def measure(
        self, ranks: int, saves: Sequence[tuple[str, int, str]], *rows: _Row
    ) -> Iterator[Measured]:
        """Let ranks save these states, and then load what the rows say."""
        rounds = self._arguments.rounds
        loads = [("load", rounds, row.kind, *row.arms, *row.peers) for row in rows]
        lines = self._run(ranks, join_commands([*(("save", *save) for save in saves), *loads]))
        for number, row in enumerate(rows, start=len(saves)):
            yield self._judge(row, [line for line in lines if line["command"] == number])

    def _run(self, ranks: int, words: Sequence[str]) -> list[dict[str, Any]]:
        start = [] if ranks == 1 else [mpiexec(), "-n", str(ranks)]
        argv = [*start, sys.executable, PROGRAMS / "load_on_ranks.py", self._folder, *words]
        environment = child_environment(self._arguments.tree)
        printed = output_of(argv, env=environment, timeout_s=TIMEOUT_S)
        return [json.loads(line) for line in printed.splitlines() if line.startswith("{")]

    def _judge(self, row: _Row, lines: Sequence[dict[str, Any]]) -> Measured:
        samples: dict[str, list[Sample]] = {}
        for line in lines:
            samples.setdefault(line["arm"], []).append(Sample(line["wall_s"], line["cpu_s"]))
        goals = []
        if len(row.arms) > 1:
            rounds = zip(*(samples[arm] for arm in row.arms[1:]), strict=True)
            samples["best"] = [min(taken, key=lambda sample: sample.wall_s) for taken in rounds]
            goals = [Goal(against="best", factor=factor) for factor in row.factors]
        return judge(row.name, row.arms[0], samples, goals, notes=self._bytes(row.arms[0], lines))

    def _bytes(self, arm: str, lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
        read = median(line["bytes_read"] for line in lines if line["arm"] == arm)
        files = Path(self._folder, arm).glob("*.safetensors")
        return {"bytes read / bytes of the files": read / sum(f.stat().st_size for f in files)}
