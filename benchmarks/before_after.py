"""Every benchmark of two versions of the package, by turns, and what became slower.

::

    git worktree add /tmp/before HEAD~10
    python benchmarks/before_after.py /tmp/before
    python benchmarks/before_after.py /tmp/before --only spine:report trees --rounds 7

The benchmarks are those of this checkout, with ``--tree`` for each of the two, or with ``--own``
those of each; only our own arm counts. Rounds go before, after, after, before, so that a drift of
the machine hits both alike. A row is worse when the median of the rounds' ratios is above
``--allowed`` and so is the ratio of the least times: what is slower in each of its rounds is slower
at its best too.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from statistics import median

from arms import OURS_ONLY, describe_machine

HERE = Path(__file__).resolve().parent
SUITES = ("spine", "resilience", "checkpoints", "trees", "ingest", "predict", "preprocessors")
COMPARE_NOTHING_ELSE = ("spine", "resilience")
"""Suites whose rows do without the arms that they compare us with."""
BEFORE, AFTER = "before", "after"


@dataclass(frozen=True)
class Compared:
    """Our arm of one row: the seconds of each round, of both versions."""

    name: str
    seconds: dict[str, list[float]] = field(default_factory=lambda: {BEFORE: [], AFTER: []})

    @property
    def ratio(self) -> float:
        """Median over the rounds, after by before."""
        pairs = zip(self.seconds[AFTER], self.seconds[BEFORE], strict=True)
        return median(after / before for after, before in pairs)

    @property
    def ratio_of_least(self) -> float:
        return min(self.seconds[AFTER]) / min(self.seconds[BEFORE])

    def is_worse(self, allowed: float) -> bool:
        return min(self.ratio, self.ratio_of_least) > 1 + allowed


def main() -> None:
    arguments = _arguments()
    trees = {BEFORE: arguments.before.resolve(), AFTER: arguments.after.resolve()}
    print(f"load {describe_machine()['load_before'][0]:.1f}", file=sys.stderr)
    compared: list[Compared] = []
    try:
        for suite, row in _chosen(arguments.only):
            rows = _compare(suite, row, trees, arguments.rounds, arguments.sizes, own=arguments.own)
            compared += rows
            _print_rows(rows, arguments.allowed)
    finally:
        if arguments.json is not None:
            document = {"machine": describe_machine(), "rows": [vars(row) for row in compared]}
            arguments.json.write_text(json.dumps(document, indent=1) + "\n")
    worse = [row.name for row in compared if row.is_worse(arguments.allowed)]
    sys.exit(f"worse: {', '.join(worse)}" if worse else None)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("before", type=Path, help="folder that holds the older package hpctrain")
    parser.add_argument("--after", type=Path, default=HERE.parent, help="by default this checkout")
    parser.add_argument("--only", nargs="+", default=list(SUITES), metavar="SUITE[:ROW]")
    parser.add_argument("--rounds", type=int, default=5, help="after one that is thrown away")
    parser.add_argument("--sizes", nargs="+", help="passed on to each benchmark")
    parser.add_argument(
        "--own", action="store_true", help="each version's own benchmarks, where these use insides"
    )
    parser.add_argument("--allowed", type=float, default=0.03, help="by how much slower is none")
    parser.add_argument("--json", type=Path, help="file for all samples")
    return parser.parse_args()


def _chosen(only: Sequence[str]) -> Iterator[tuple[str, str]]:
    for name in only:
        suite, _, row = name.partition(":")
        yield from ((suite, each) for each in ([row] if row else import_module(suite).ROWS))


def _compare(
    suite: str,
    row: str,
    trees: dict[str, Path],
    rounds: int,
    sizes: Sequence[str] | None,
    *,
    own: bool,
) -> list[Compared]:
    rows: dict[str, Compared] = {}
    for number in range(rounds + 1):
        order = (BEFORE, AFTER) if number % 2 == 0 else (AFTER, BEFORE)
        for version in order:
            for name, seconds in _measure(suite, row, trees[version], sizes, own=own):
                if number > 0:
                    rows.setdefault(name, Compared(name)).seconds[version].append(seconds)
    both = [row for row in rows.values() if all(row.seconds.values())]
    for name in rows.keys() - {row.name for row in both}:
        print(f"{name}: only one of the versions has it", file=sys.stderr)
    return both


def _measure(
    suite: str, row: str, tree: Path, sizes: Sequence[str] | None, *, own: bool
) -> Iterator[tuple[str, float]]:
    benchmarks = tree / "benchmarks" if own else HERE
    environment = dict(os.environ)
    if suite in COMPARE_NOTHING_ELSE:
        environment[OURS_ONLY] = "1"
    if own:  # what the benchmark itself imports is of its version, too
        paths = (str(tree), os.environ.get("PYTHONPATH"))
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        argv = [
            sys.executable,
            benchmarks / f"{suite}.py",
            "--only",
            row,
            "--rounds",
            "1",
            "--quiet",
        ]
        argv += ["--tree", tree, "--json", file.name]
        argv += ["--sizes", *sizes] if sizes else []
        subprocess.run(
            [str(word) for word in argv],
            check=True,
            stdout=subprocess.DEVNULL,
            env=environment,
        )
        for measured in json.loads(Path(file.name).read_text())["rows"]:
            samples = measured["samples"][measured["ours"]]
            yield f"{suite}:{measured['name']}", median(sample["wall_s"] for sample in samples)


def _print_rows(rows: Sequence[Compared], allowed: float) -> None:
    for row in rows:
        before, after = (median(row.seconds[version]) for version in (BEFORE, AFTER))
        verdict = "WORSE" if row.is_worse(allowed) else ""
        print(
            f"{row.name:<44}{before:>11.4g} s{after:>11.4g} s"
            f"{row.ratio:>8.3f}{row.ratio_of_least:>8.3f}  {verdict}",
            flush=True,
        )


if __name__ == "__main__":
    main()
