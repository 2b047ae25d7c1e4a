"""``console``: steps of 1 ms of a run that is looked at in every way, against one that is not.

The loop is that of ``control`` with a collective and an optimizer in each step, for which the
search for slow nodes costs something. Two rows of the same steps: their time, and the CPU time of
all threads of rank 0. The ranks share one CPU, so a step takes the time of both, and the executor
and ``hpctrain top`` have another. On a noisy machine no step of 1 ms is as long as the next: a
third row has steps without their work. The CPU time that the console adds to such a step is a large
part of it, and is set against 1 ms.

torch records collectives by default (2.13, also for Gloo), and the console reads that record: what
the recorder itself costs is not the console's, and is printed beside it (``unrecorded``).
"""

from __future__ import annotations

import json
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median, quantiles

from arms import (
    PROGRAMS,
    Arm,
    Goal,
    Measured,
    Row,
    Sample,
    alternate,
    child_environment,
    judge,
    run_command,
)
from control import bytes_of_a_step

RANKS = 2
BLOCKS = 60
STEP_S = 1e-3
EMPTY_BLOCKS = 500
# Share of the time that readings of the flight recorder may take, of hpctrain.execute.slow_nodes.
READINGS = 1 / 1000
MOST = 1.005


def measure(arguments: Namespace) -> Iterator[Measured]:
    num_bytes = bytes_of_a_step()
    num_blocks, num_empty_blocks = arguments.sizes or (BLOCKS, EMPTY_BLOCKS)

    def run(how: str, num_bytes: int, num_blocks: int) -> list[tuple[float, float]]:
        with tempfile.TemporaryDirectory(prefix="hpctrain-bench-") as folder:
            answer = Path(folder, "answer.json")
            program = PROGRAMS / "console_steps.py"
            argv = [
                str(w) for w in (sys.executable, program, how, RANKS, num_bytes, num_blocks, answer)
            ]
            run_command(argv, cwd=folder, env=child_environment(arguments.tree), timeout_s=180)
            return [(wall, cpu) for wall, cpu in json.loads(answer.read_bytes())["block"]]

    def sample(how: str) -> Sample:
        blocks = run(how, num_bytes, num_blocks)
        # What others do on the machine hits some of the blocks.
        return Sample(median(wall for wall, _ in blocks), median(cpu for _, cpu in blocks))

    def sample_empty(how: str) -> Sample:
        # In the quickest quarter of the blocks, others took little of the machine, and no reading
        # of the flight recorder was made: these are bounded by the time that passes, not by steps.
        cpu_s, _, _ = quantiles((cpu for _, cpu in run(how, 0, num_empty_blocks)), n=4)
        readings_s = STEP_S * READINGS if how == "on" else 0.0
        return Sample(STEP_S + cpu_s + readings_s)

    row = Row(
        name="console",
        ours=Arm(name="on", measure=lambda: sample("on")),
        others=[Arm(name="off", measure=lambda: sample("off"))],
        goals=[Goal(against="off", factor=MOST)],
    )
    measured = alternate(row, rounds=arguments.rounds, say=arguments.say)
    yield measured
    cpu = {arm: [Sample(s.cpu_s or 0.0) for s in of] for arm, of in measured.samples.items()}
    yield judge("console, CPU of a step", "on", cpu, row.goals)
    yield alternate(
        replace(
            row,
            name="console, CPU added to 1 ms",
            ours=Arm(name="on", measure=lambda: sample_empty("on")),
            others=[
                Arm(name="off", measure=lambda: sample_empty("off")),
                Arm(name="unrecorded", measure=lambda: sample_empty("unrecorded")),
            ],
        ),
        rounds=arguments.rounds,
        say=arguments.say,
    )
