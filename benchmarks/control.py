"""``control``: steps of 1 ms that ask ``should_stop()``, against the same loop without hpctrain.

What is there besides the loop: the thread of the link, the heartbeat, the executor that listens.
The loop is one of equal work, and not one of equal time, which would hide what it is kept from.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from arms import (
    PROGRAMS,
    Arm,
    Goal,
    Measured,
    Row,
    Sample,
    alternate,
    child_environment,
    mpiexec,
    run_command,
)

STEP_S = 1e-3
BLOCKS = 30
FACTOR = 1.01
AIM = 1.002


def measure(arguments: Namespace) -> Iterator[Measured]:
    num_bytes = bytes_of_a_step()
    for size in arguments.sizes or (2,):

        def sample(how: str, size: int = size) -> Sample:
            script = [sys.executable, PROGRAMS / "steps.py", how, size, num_bytes, BLOCKS]
            launcher = [mpiexec(), "-n", size] if how == "bare" else []
            with tempfile.TemporaryDirectory(prefix="hpctrain-bench-") as folder:
                answer = Path(folder, "answer.json")
                argv = [str(word) for word in (*launcher, *script, answer)]
                environment = child_environment(arguments.tree)
                run_command(argv, cwd=folder, env=environment, timeout_s=120)
                blocks = json.loads(answer.read_bytes())
            # Of blocks of a tenth of a second: what others do on the machine hits some of them.
            return Sample(median(wall for wall, _ in blocks), median(cpu for _, cpu in blocks))

        row = Row(
            name=f"control {size} ranks",
            ours=Arm(name="in a run", measure=lambda: sample("run")),
            others=[Arm(name="alone", measure=lambda: sample("bare"))],
            goals=[Goal(against="alone", factor=factor) for factor in (FACTOR, AIM)],
        )
        yield alternate(row, rounds=arguments.rounds, say=arguments.say)


def bytes_of_a_step() -> int:
    content = bytes(2**20)
    taken = []
    for _ in range(50):
        begin = time.perf_counter()
        hashlib.sha256(content).digest()
        taken.append(time.perf_counter() - begin)
    return int(len(content) * STEP_S / median(taken))
