"""``checkpoint_load``: states that are loaded into live tensors, verified, on one and more ranks.

Against the quickest way in which the same files can be read at all: through the page cache where
they are in it, past it where not, with one to four threads. Others load without verifying. Beside
the cold resume stands ``bare``, which hashes and copies what it reads, and does nothing else.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from arms import PROGRAMS, Goal, Measured, Sample, child_environment, judge, mpiexec

MIB = 1024
TIMEOUT_S = 600.0
PEERS = ("torch.load", "torch.load mmap", "safetensors", "DCP")


def measure(arguments: Namespace) -> Iterator[Measured]:
    mib = (arguments.sizes or [MIB])[0]
    # /tmp may be memory; the directory of the benchmarks is on a disk.
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=arguments.tree) as folder:
        bench = _Bench(folder, arguments)
        bench.run(1, "save", "plain", str(mib), "plain")
        for kind, ways, goals in (("warm", ("1w", "2w"), (2.0, 1.5)), ("cold", "124", (1.05, 1.0))):
            bare = ["bare:plain:4"] if kind == "cold" else []
            yield bench.row(
                f"resume {kind}, 1 rank",
                1,
                kind,
                ["plain", *(f"raw:plain:{way}" for way in ways)],
                goals,
                peers=[*bare, *(f"torch:plain:{way}" for way in PEERS)],
            )
        for ranks in (4, 3, 2):
            bench.run(ranks, "save", f"of {ranks}", str(mib), "sharded")
        bench.run(4, "save", "replicated", str(mib), "replicated")
        raw = [f"raw:of 4:{way}" for way in "12"]
        yield bench.row("resume cold, 4 ranks", 4, "cold", ["of 4", *raw], (1.15, 1.05))
        yield bench.row("reshard 4 to 2 ranks", 2, "cold", ["of 4", "of 2"], (1.3, 1.1))
        yield bench.row("reshard 2 to 3 ranks", 3, "cold", ["of 2", "of 3"], (1.3, 1.1))
        yield bench.row("replicated, 4 ranks", 4, "cold", ["replicated"], ())


class _Bench:
    def __init__(self, folder: str, arguments: Namespace) -> None:
        self._folder, self._arguments = folder, arguments

    def run(self, ranks: int, *words: str) -> str:
        """Run the program on ranks, and return what it printed."""
        start = [] if ranks == 1 else [mpiexec(), "-n", str(ranks)]
        done = subprocess.run(
            [*start, sys.executable, PROGRAMS / "load_on_ranks.py", self._folder, *words],
            env=child_environment(self._arguments.tree),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        if done.returncode != 0:
            raise SystemExit(f"status {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout

    def row(
        self,
        name: str,
        ranks: int,
        kind: str,
        arms: Sequence[str],
        factors: Sequence[float],
        *,
        peers: Sequence[str] = (),
    ) -> Measured:
        """Measure arms by turns; the first against the best of the others in each round."""
        words = ["load", str(self._arguments.rounds), kind, *arms, *peers]
        lines = [
            json.loads(line)
            for line in self.run(ranks, *words).splitlines()
            if line.startswith("{")
        ]
        samples: dict[str, list[Sample]] = {}
        for line in lines:
            samples.setdefault(line["arm"], []).append(Sample(line["wall_s"], line["cpu_s"]))
        goals = []
        if len(arms) > 1:
            rounds = zip(*(samples[arm] for arm in arms[1:]), strict=True)
            samples["best"] = [min(taken, key=lambda sample: sample.wall_s) for taken in rounds]
            goals = [Goal(against="best", factor=factor) for factor in factors]
        return judge(name, arms[0], samples, goals, notes=self._bytes(arms, lines))

    def _bytes(self, arms: Sequence[str], lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
        read = median(line["bytes_read"] for line in lines if line["arm"] == arms[0])
        files = Path(self._folder, arms[0]).glob("*.safetensors")
        return {"bytes read / bytes of the files": read / sum(f.stat().st_size for f in files)}
