"""Fabricated runs, however large: restarts, ranks, and metrics of few points or of none."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from hpctrain.rundir.paths import RunPaths

LONG = "grad/norm/of/a/layer/with/a/name/without/an/end/" + "attention_" * 9
BEGAN = 1_700_000_000.0
RANKS_PER_NODE = 8
ATTEMPTS_PER_JOB = 126
STEP_S, START_S = 20, 30


def make_waits(num_ranks: int, seconds: float) -> dict[str, Any]:
    """Return what the executor notes of ranks that wait for data, checkpoints and each other."""
    waits: dict[str, Any] = {"ranks": num_ranks, "seconds": seconds}
    for part, share in (("data", 0.09), ("checkpoint", 0.04), ("collective", 0.02)):
        waits[part] = {
            "mean": share * seconds,
            "most": [2 * share * seconds, num_ranks - 1],
            "least": [share * seconds / 2, 0],
        }
    return waits


def write_run(
    root: Path,
    *,
    num_restarts: int,
    num_nodes: int,
    steps: int = 3,
    is_odd: bool = True,
    waits: bool = False,
) -> RunPaths:
    """Write the files of a run that fails again and again, two steps after its last checkpoint.

    Parameters
    ----------
    steps
        Reports of each attempt; the next one makes the last two again.
    is_odd
        Whether some metrics have long names, one value, or none that is finite.
    waits
        Whether it is known what ranks waited for.
    """
    root.mkdir(parents=True)
    nodes = [f"gpu{number:04d}" for number in range(num_nodes)]
    attempt_s, size = START_S + STEP_S * steps + 60, RANKS_PER_NODE * num_nodes
    events: list[dict[str, Any]] = []
    lines: list[dict[str, Any]] = []

    def note(at: float, name: str, **fields: Any) -> None:
        events.append({"event": name, "time": BEGAN + at, **fields})

    note(attempt_s - 240, "fit", launcher="slurm")
    job, number, end = "", 0, 0
    for attempt in range(1, num_restarts + 2):
        begin, rank = attempt * attempt_s, attempt * 389 % size
        if (attempt - 1) % ATTEMPTS_PER_JOB == 0:
            job = str(880_000 + attempt)
            note(begin - 239, "submitted", job_id=job)
            note(begin - 30, "executor-started", job_id=job, restarts=0)
        first = (attempt - 1) * max(1, steps - 2) + 1
        name = f"{first - 1:06d}"
        note(
            begin,
            "attempt-started",
            attempt=attempt,
            job_id=job,
            resumed_from=name if number else None,
        )
        for step in range(steps):
            number = first + step
            metrics: dict[str, Any] = {
                "loss": math.exp(-number / 150) + (number % 7) / 50,
                "learning_rate": 3e-4,
                "val": {"accuracy": math.nan if number % 4 else 1 - math.exp(-number / 90)},
            }
            if is_odd:
                metrics |= {LONG: number % 11, "never finite": math.nan}
                metrics |= {"once": 0.25} if number == 1 else {}
            lines.append(
                {
                    "report": number,
                    "attempt": attempt,
                    "time": BEGAN + begin + START_S + STEP_S * step,
                    "metrics": metrics,
                    "checkpoint": name,
                }
            )
        end = begin + START_S + STEP_S * steps
        killed = f"rank {rank} of {size} on {nodes[rank // RANKS_PER_NODE]} was killed by SIGKILL"
        note(
            end,
            "attempt-ended",
            attempt=attempt,
            nodes=nodes,
            reports=first + steps - 1,
            checkpoint=name,
            kind=None if attempt > num_restarts else "worker",
            cause="finished" if attempt > num_restarts else killed,
            waits=make_waits(size, STEP_S * (steps - 1)) if waits else None,
        )
        if attempt <= num_restarts:
            again = f"{first + steps - 3:06d}" if steps > 2 else None
            note(end + 1, "restart", what=f"rank {rank} failed", checkpoint=again)
    note(end + 5, "run-ended", state="finished")
    paths = RunPaths(root)
    paths.ledger.write_text("".join(json.dumps(event) + "\n" for event in events))
    paths.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    plan = {
        "trainer": "TorchTrainer",
        "versions": {"torch": "2.13.0"},
        "scaling_config": {"num_workers": size},
        "launch_plan": {
            "placement": {
                "tasks_per_node": [RANKS_PER_NODE] * num_nodes,
                "cpus_per_task": 8,
                "gpus_per_task": 1,
            }
        },
    }
    paths.plan.write_text(json.dumps(plan))
    status = {
        "name": root.name,
        "state": "finished",
        "launcher": "slurm",
        "world_size": size,
        "nodes": nodes,
        "attempt": num_restarts + 1,
        "reports": number,
        "job_id": job,
        "started_at": BEGAN,
        "updated_at": BEGAN + end + 5,
        "ended_at": BEGAN + end + 5,
    }
    paths.status.write_text(json.dumps(status))
    return paths
