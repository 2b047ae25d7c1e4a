"""Measure what a training loop pays for the count of its waits.

::

    python benchmarks/loop_time.py            # some seconds

The same loop, of batches that are there and of what is added to a report, with the count and
without it, by turns. The difference is what a step with one batch and one report pays, in CPU time:
what else the machine does makes that longer, too, but not by as much.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from statistics import median
from time import thread_time

from hpctrain.loop_time import CHECKPOINT, LoopTime, TimedIterator
from hpctrain.worker.metrics import encode_line

STEPS = 2_000
METRICS = b'{"loss":0.25}'


def steps(batches: Iterator[None], loop_time: LoopTime | None) -> float:
    """Return the CPU seconds of a step."""
    began = thread_time()
    for number in range(STEPS):
        next(batches)
        if loop_time is None:
            encode_line(number, 1, b"null", METRICS)
            continue
        is_first = loop_time.begin(CHECKPOINT)
        try:
            encode_line(number, 1, b"null", METRICS, waited=loop_time.encode())
        finally:
            if is_first:
                loop_time.end()
    return (thread_time() - began) / STEPS


def main() -> None:
    parser = ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=250)
    parser.add_argument("--json", type=Path, help="where to write all that was measured")
    arguments = parser.parse_args()
    counted = LoopTime()
    counted.start()
    counted.see_data()
    batches = TimedIterator(repeat(None), counted)
    taken: dict[str, list[float]] = {"counted": [], "not counted": []}
    for _ in range(arguments.rounds):
        taken["counted"].append(steps(batches, counted))
        taken["not counted"].append(steps(repeat(None), None))
    cost_s = median(a - b for a, b in zip(*taken.values(), strict=True))
    print(f"a step with one batch and one report: {cost_s * 1e6:.2f} us more with the count")
    print(f"of a step of 1 ms: {cost_s * 1e5:.3f}%")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"cost_s": cost_s, "samples": taken}))


if __name__ == "__main__":
    main()
