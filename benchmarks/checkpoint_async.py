"""``async``: how long steps stand still for a save behind them, and what it adds to the training.

Against one copy of the state into mapped memory, which no snapshot that is taken at once can
do without. Beside it torch.distributed.checkpoint.async_save, whose memory is used again too, and
torch.save in a thread. Forward, backward and optimizer are real ones on one thread.

``async-gpu`` is the same with model and optimizer on a GPU, against one copy of the state into
pinned memory.
"""

from __future__ import annotations

import json
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from arms import PROGRAMS, Goal, Measured, Sample, child_environment, judge, run_command

STATE_MIB = 1032
OURS, COPY = "ours", "one copy"
DCP = "DCP async"
ARMS = (OURS, "ours, SYNC", DCP, "torch.save in a thread")
STILL_MUST, STILL_AIM = 1.05, 0.03
ADDED_MUST, ADDED_AIM = 1.2, 0.5


def measure_on_gpu(arguments: Namespace) -> Iterator[Measured]:
    return measure(arguments, device="cuda")


def measure(arguments: Namespace, device: str = "cpu") -> Iterator[Measured]:
    (state_mib,) = arguments.sizes or [STATE_MIB]
    # With a GPU, DCP's stager of torch 2.11 fails at the second save (KeyError: <class 'type'>).
    arms = ARMS if device == "cpu" else tuple(arm for arm in ARMS if arm != DCP)
    name = "async" if device == "cpu" else "async-gpu"
    sizes = {"state_mib": state_mib, "device": device}
    found = run_steps(arguments.tree, arms, rounds=arguments.rounds, **sizes)
    alone = run_steps(arguments.tree, (OURS,), rounds=2, **sizes)
    rounds, gib = found["rounds"], found["state_bytes"] / 2**30
    if arguments.say is not None:
        for number, taken in enumerate(rounds, 1):
            added = {arm: round(taken[arm]["added_s"], 3) for arm in arms}
            arguments.say(f"{name} round {number}: copy {taken['copy_s']:.3f} s, added {added}")
    copies = [Sample(taken["copy_s"]) for taken in rounds]

    def samples(seconds: Any) -> dict[str, list[Sample]]:
        return {
            **{
                arm: [Sample(seconds(taken[arm]), taken[arm]["cpu_s"]) for taken in rounds]
                for arm in arms
            },
            COPY: copies,
        }

    steps = [step for taken in rounds for arm in arms for step in taken[arm]["usual_s"]]
    yield judge(
        f"{name}: steps stand still",
        OURS,
        samples(lambda arm: arm["call_s"] + arm["gate_s"]),
        [Goal(against=COPY, factor=factor) for factor in (STILL_MUST, STILL_AIM)],
        notes={
            "of that the call, ms": round(1e3 * median(r[OURS]["call_s"] for r in rounds), 1),
            "steps without a save, s": round(median(steps), 3),
            "CPU s a GiB": {
                arm: round(median(taken[arm]["cpu_s"] for taken in rounds) / gib, 2) for arm in arms
            },
            "until it is committed, s": {
                arm: round(median(taken[arm]["done_s"] for taken in rounds), 2) for arm in arms
            },
            "more memory at most, of the state": round(alone["peak_of_state"], 3),
        },
    )
    yield judge(
        f"{name}: training time added",
        OURS,
        samples(lambda arm: arm["added_s"]),
        [Goal(against=COPY, factor=factor) for factor in (ADDED_MUST, ADDED_AIM)],
        notes={
            "least, ms": {
                arm: round(1e3 * min(taken[arm]["added_s"] for taken in rounds)) for arm in arms
            },
        },
    )


def run_steps(
    tree: Path,
    arms: tuple[str, ...],
    *,
    rounds: int,
    state_mib: int = STATE_MIB,
    device: str = "cpu",
) -> dict[str, Any]:
    # /tmp may be memory; the directory of the benchmarks is on a disk.
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=tree) as folder:
        answer = Path(folder, "answer.json")
        words = [folder, str(state_mib), str(rounds), str(answer), device, *arms]
        run_command(
            [sys.executable, PROGRAMS / "saving_steps.py", *words],
            cwd=folder,
            env=child_environment(tree),
            timeout_s=900,
        )
        measured: dict[str, Any] = json.loads(answer.read_bytes())
    return measured
