"""What it costs to watch for slow nodes, and whether any is named that is not slow.

::

    python benchmarks/slow_nodes.py                    # 50,000 steps, some minutes
    python benchmarks/slow_nodes.py --sizes 20         # blocks of 100 steps in each round

Two ranks that share a CPU make steps of 1 ms with a collective and an optimizer: those of
``console``, of which the skew of ranks is the only part that is on. The first row is what rank 0
takes for it, in CPU time of a step: a note for each of them, and the readings of torch's flight
recorder. The second one has whole steps, with the watch and without: on a noisy machine no step is
as long as the next, and the difference is smaller than that. No node is slow, so none may be named.
"""

from __future__ import annotations

import json
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from arms import (
    PROGRAMS,
    Goal,
    Measured,
    OthersShare,
    Sample,
    child_environment,
    judge,
    run_command,
)
from console import RANKS, STEP_S
from control import bytes_of_a_step
from spine import Rows, run_rows

STEPS = 100
"""Of a block."""
BLOCKS = 100
MOST = 0.002
ARMS = {"watched": "watched", "not": "off"}


def measure(arguments: Namespace) -> Iterator[Measured]:
    num_bytes = bytes_of_a_step()
    (num_blocks,) = arguments.sizes or (BLOCKS,)
    steps: dict[str, list[Sample]] = {arm: [] for arm in ARMS}
    taken: list[Sample] = []
    notes: list[float] = []
    readings: list[float] = []
    named: list[dict[str, Any]] = []
    others = OthersShare()
    num_rounds = arguments.rounds + (arguments.rounds > 1)
    for number in range(num_rounds):
        for arm, how in ARMS.items():
            answer, events = run_steps(arguments.tree, how, num_bytes, num_blocks)
            named += [event for event in events if event["event"] == "node-slow"]
            sample = Sample(*(median(each) for each in zip(*answer["block"], strict=True)))
            if arguments.say is not None:
                arguments.say(f"slow nodes round {number}: {arm} {sample.wall_s * 1e3:.3f} ms")
            # The first one fills the page cache and writes bytecode.
            if number == 0 and num_rounds > 1:
                continue
            steps[arm].append(sample)
            if arm == "watched":
                watched_s = STEPS * sum(wall for wall, _ in answer["block"])
                share = sum(answer["readings"]) / watched_s
                taken.append(Sample(answer["note"] + share * STEP_S))
                notes.append(answer["note"])
                readings += answer["readings"]
    yield judge(
        "slow nodes, of 1 ms",
        "note and readings",
        {"note and readings": taken, "1 ms": [Sample(STEP_S) for _ in taken]},
        [Goal(against="1 ms", factor=MOST)],
        notes={
            "a note, us": round(median(notes) * 1e6, 2),
            "readings": len(readings),
            "a reading, ms": round(median(readings or [0.0]) * 1e3, 2),
        },
    )
    measured = judge(
        "slow nodes, steps",
        "watched",
        steps,
        [Goal(against="not", factor=1 + MOST)],
        notes={"steps watched": num_rounds * num_blocks * STEPS, "nodes named": len(named)},
    )
    yield replace(measured, others_share=others.take())
    if named:
        raise SystemExit("a node was named that is not slow:\n" + "\n".join(map(str, named)))


def run_steps(
    tree: Path, how: str, num_bytes: int, num_blocks: int
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Make steps in a run; return what its rank 0 measured, and the events of the run."""
    with tempfile.TemporaryDirectory(prefix="hpctrain-bench-") as folder:
        answer = Path(folder, "answer.json")
        program = PROGRAMS / "console_steps.py"
        argv = [sys.executable, program, how, RANKS, num_bytes, num_blocks, answer]
        environment = child_environment(tree)
        run_command(list(map(str, argv)), cwd=folder, env=environment, timeout_s=300)
        lines = Path(folder, "run", "ledger.jsonl").read_text().splitlines()
        return json.loads(answer.read_bytes()), [json.loads(line) for line in lines]


ROWS: Rows = {"slow-nodes": measure}


if __name__ == "__main__":
    run_rows(ROWS, description=__doc__, rounds=5)
