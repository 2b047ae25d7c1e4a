"""``goodput``: a rank is killed every minute; how much of the time are steps that count.

Two ranks, 1 GiB of state, steps of 0.3 s, saved in the background every few steps. Kills come after
each of these steps once, since how many are done twice depends on when the last save began. What
counts is each step once, at the median length of a step; from the beginning of the first to the end
of the last. What this run tells of saves and restarts also gives, by a model, the goodput with a
failure every ten minutes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from arms import PROGRAMS, Goal, Measured, Sample, child_environment, judge

STATE_MIB = 1024
STEP_S = 0.3
SAVE_EVERY = 5
KILL_EVERY_S = 60.0
KILLS = SAVE_EVERY
STEPS = int((KILLS + 0.9) * KILL_EVERY_S / STEP_S)
TIMEOUT_S = 900.0
MUST, AIM = 0.95, 0.97
RARE_S = 600.0


def measure(arguments: Namespace) -> Iterator[Measured]:
    # /tmp may be memory; the directory of the benchmarks is on a disk.
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=arguments.tree) as folder:
        kills = _run(Path(folder), arguments)
        lines = Path(folder, "steps-0.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    steps = [event for event in events if "step" in event]
    began = steps[0]["end"] - steps[0]["worked"]
    wall_s = steps[-1]["end"] - began
    length_s = median(step["worked"] for step in steps)
    useful_s = STEPS * length_s
    starts = [event for event in events if "entered" in event]
    restart_s = [_restart_s(events, number) for number in range(1, len(starts))]
    lost = len(steps) - STEPS
    # What a step takes beyond its work is what saving costs.
    saving_s = sum(_beyond(events))
    per_step_s = saving_s / len(steps)
    failure_s = median(restart_s) + lost / len(restart_s) * length_s
    rare = (1 - failure_s / RARE_S) * length_s / (length_s + per_step_s)
    samples = {
        "wall": [Sample(wall_s)],
        "steps that count": [Sample(useful_s)],
    }
    yield judge(
        f"goodput, {kills} kills",
        "wall",
        samples,
        [Goal(against="steps that count", factor=1 / share) for share in (MUST, AIM)],
        notes={
            "useful / wall": round(useful_s / wall_s, 4),
            "kill to the first step again, s": [round(s, 2) for s in restart_s],
            "of that loading, s": [round(start["loaded"], 2) for start in starts[1:]],
            "steps done twice": lost,
            "saving, ms a step": round(per_step_s * 1e3, 1),
            f"useful / wall, a kill every {RARE_S:.0f} s, by the model": round(rare, 4),
        },
    )


def _run(folder: Path, arguments: Namespace) -> int:
    words = [str(folder), str(STEPS), str(SAVE_EVERY), str(STATE_MIB), str(STEP_S)]
    kills = 0
    with open(folder / "output", "w+") as output:
        process = subprocess.Popen(
            [sys.executable, str(PROGRAMS / "useful_steps.py"), *words],
            cwd=folder,
            env=child_environment(arguments.tree),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        deadline = time.monotonic() + TIMEOUT_S
        try:
            while (status := _wait(process, until=deadline, folder=folder)) is None:
                if time.monotonic() >= deadline:
                    raise SystemExit(f"goodput: not done within {TIMEOUT_S:.0f} s")
                if kills < KILLS:
                    _await_step(folder, kills, until=deadline)
                    with suppress(ProcessLookupError):  # it is not up again
                        os.kill(int((folder / "pid-1").read_text()), signal.SIGKILL)
                        kills += 1
        finally:
            process.kill()
        if status != 0:
            output.seek(0)
            raise SystemExit(f"goodput: ended with status {status}:\n{output.read()}")
    return kills


def _wait(process: subprocess.Popen[bytes], *, until: float, folder: Path) -> int | None:
    """Wait until a rank has worked for a while; return the status of a run that ends before."""
    while time.monotonic() < until:
        # The first kill comes a while after the first step.
        began = (folder / "pid-1").exists()
        try:
            return process.wait(min(KILL_EVERY_S if began else 0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            if began:
                break
    return None


def _await_step(folder: Path, phase: int, *, until: float) -> None:
    """Wait until half a step after the end of one that has this number among those of a save."""
    path = folder / "steps-1.jsonl"
    begin = path.stat().st_size
    while time.monotonic() < until:
        with path.open("rb") as lines:
            lines.seek(begin)
            done = [json.loads(line) for line in lines if line.endswith(b"\n")]
        last = done[-1].get("step") if done else None
        if last is not None and last % SAVE_EVERY == phase:
            time.sleep(STEP_S / 2)
            return
        time.sleep(STEP_S / 20)


def _restart_s(events: list[dict[str, Any]], number: int) -> float:
    """Return the seconds from the last step before a start to the first one's beginning."""
    (at,) = [i for i, e in enumerate(events) if "entered" in e][number : number + 1]
    return float(events[at + 1]["end"] - events[at + 1]["worked"] - events[at - 1]["end"])


def _beyond(events: list[dict[str, Any]]) -> Iterator[float]:
    for before, after in pairwise(events):
        if "step" in before and "step" in after:
            yield after["end"] - before["end"] - after["worked"]
