"""Every benchmark of the way from ``python train.py`` to a Result, with one command.

::

    python benchmarks/spine.py                          # everything, about a quarter of an hour
    python benchmarks/spine.py --rounds 5 --only report import
    python benchmarks/spine.py --only bootstrap --sizes 2 4 8
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import bootstrap
import connections
import empty_run
import empty_run_import_torch
import imports
import report
import submit
from arms import Measured, describe_machine, print_table, write_json

Rows = Mapping[str, Callable[[argparse.Namespace], Iterator[Measured]]]

ROWS: Rows = {
    "empty-run": empty_run.measure,
    "empty-run-import-torch": empty_run_import_torch.measure,
    "report": report.measure,
    "import": imports.measure,
    "submit": submit.measure,
    "bootstrap": bootstrap.measure,
    "connections": connections.measure,
}


def parse_arguments(rows: Rows, *, description: str, rounds: int) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=rounds, help="measured rounds of each row")
    parser.add_argument("--only", nargs="+", choices=rows, default=list(rows), metavar="ROW")
    parser.add_argument(
        "--sizes",
        nargs="+",
        type=int,
        help="ranks, thousands of rows or MiB, in place of a row's own",
    )
    parser.add_argument("--json", type=Path, help="file for all samples")
    parser.add_argument(
        "--tree",
        type=Path,
        default=Path(__file__).resolve().parent.parent,
        help="folder that holds the package hpctrain; by default this checkout",
    )
    parser.add_argument("--quiet", action="store_true", help="only the table")
    arguments = parser.parse_args()
    arguments.tree = arguments.tree.resolve()
    arguments.say = None if arguments.quiet else lambda line: print(line, file=sys.stderr)
    return arguments


def run_rows(rows: Rows, *, description: str, rounds: int) -> None:
    """Measure what the command line asks for, and print it."""
    arguments = parse_arguments(rows, description=description, rounds=rounds)
    machine = describe_machine()
    results: list[Measured] = []
    # What was measured until then is printed if somebody loses patience.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    try:
        for name in arguments.only:
            results.extend(rows[name](arguments))
    finally:
        machine["load_after"] = os.getloadavg()
        if arguments.json is not None:
            write_json(arguments.json, machine, results)
        print_table(results)
        before, after = machine["load_before"][0], machine["load_after"][0]
        print(f"\n{machine['cpus']} CPUs, load {before:.1f} before and {after:.1f} after,", end=" ")
        print(f"Python {machine['python']},", machine["versions"])


if __name__ == "__main__":
    run_rows(ROWS, description=__doc__, rounds=5)
