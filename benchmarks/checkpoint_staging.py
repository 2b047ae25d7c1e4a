"""``staging``: what another library saved, copied into the commit, digested and on the disk.

Against the quickest way in which as many bytes get from one file into another at all: past the page
cache, one block after the other or while the next is read, and an fsync, without digests. Beside it
the way through the page cache: a copy by the kernel, an fsync, and reading it again for a digest.
Then: how long 64 ranks take to have their turns to write, when nothing is written.
"""

from __future__ import annotations

import json
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from arms import PROGRAMS, Goal, Measured, Sample, child_environment, judge, output_of

MIB = 1024
RANKS = 64
TIMEOUT_S = 900.0
MUST, AIM = 1.1, 1.02
TURNS_S = 0.1
OURS, BEST = "ours", "raw, best"


def measure(arguments: Namespace) -> Iterator[Measured]:
    cold = [OURS, "raw:one", "raw:two", "through the cache"]
    yield _row(arguments, "staging from the disk", "cold", cold)
    # As a library leaves it: written a moment ago.
    yield _row(arguments, "staging from the cache", "warm", [OURS, "raw:warm", "through the cache"])
    yield _turns(arguments)


def _row(arguments: Namespace, name: str, source: str, arms: Sequence[str]) -> Measured:
    mib = (arguments.sizes or [MIB])[0]
    # /tmp may be memory; the directory of the benchmarks is on a disk.
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=arguments.tree) as folder:
        lines = _run(arguments, "copy_file.py", folder, mib, source, arguments.rounds, *arms)
    samples: dict[str, list[Sample]] = {arm: [] for arm in arms}
    for line in lines:
        # The first round finds code and memory for the first time.
        if line["round"] > 0:
            samples[line["arm"]].append(Sample(line["wall_s"], line["cpu_s"]))
    raw = [samples[arm] for arm in arms if arm.startswith("raw:")]
    samples[BEST] = [
        min(taken, key=lambda sample: sample.wall_s) for taken in zip(*raw, strict=True)
    ]
    cpu_s = {arm: median(s.cpu_s or 0.0 for s in samples[arm]) / mib * 1024 for arm in arms}
    return judge(
        name,
        OURS,
        samples,
        [Goal(against=BEST, factor=factor) for factor in (MUST, AIM)],
        notes={"CPU seconds / GiB": {arm: round(spent, 3) for arm, spent in cpu_s.items()}},
    )


def _turns(arguments: Namespace) -> Measured:
    lines = _run(arguments, "take_turns.py", RANKS, arguments.rounds)
    samples: dict[str, list[Sample]] = {}
    for line in lines:
        if line["round"] > 0:
            samples.setdefault(line["arm"], []).append(Sample(line["wall_s"], line["cpu_s"]))
    return judge(
        f"turns of {RANKS} ranks",
        "8 at a time",
        samples,
        [Goal(against="no limit", plus_s=TURNS_S)],
        notes={"ranks": "threads of one process, over one socket each; nothing is written"},
    )


def _run(arguments: Namespace, program: str, *words: Any) -> list[dict[str, Any]]:
    argv = [sys.executable, PROGRAMS / program, *words]
    printed = output_of(argv, env=child_environment(arguments.tree), timeout_s=TIMEOUT_S)
    return [json.loads(line) for line in printed.splitlines()]
