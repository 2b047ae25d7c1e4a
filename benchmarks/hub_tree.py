"""What an executor and agents that relay cost, by the number of nodes, and what a model predicts.

::

    python benchmarks/hub_tree.py --json benchmarks/results/hub_tree.json
    python benchmarks/hub_tree.py --sizes 16 64 --shapes tree

The executor's hub is real, and so are the connections of all agents: eight processes with a
selector each hold them (`programs/many_agents.py`). Ranks are played. All of it is on this machine,
so wall times are those of its cores, and CPU seconds are what can be compared. Nobody beats while
nodes join, or in a round of freeze: on nodes of their own that takes no time from the others.

A model of each cost is fitted to the sizes up to `FITTED`, and predicts the larger ones::

    cost = a + b * (children of the executor) + c * nodes + d * (levels - 1) + e * hops

without the last two terms for the executor's CPU, on which depth has no influence. Hops are frames
of a round that agents pass on for others: the sum over the levels of their nodes times their depth.
Coefficients are not negative. Errors are weighed by the root of what was measured, as where each
of many frames costs a little more or less. With 32 children, up to 1,024 nodes are two levels: what
a third one costs is fitted to trees of 8 children, too.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from arms import PROGRAMS, describe_machine
from scipy.optimize import nnls

from hpctrain.control import hub as hub_module
from hpctrain.control.hub import BEAT_INTERVAL_S, Hub
from hpctrain.control.hub_tree import level_sizes
from hpctrain.control.proof import Credentials

SIZES = (16, 32, 64, 128, 256, 512, 1024, 4096)
FITTED = 1024
GOAL = 0.15
FANOUT = 32
FITTED_FANOUTS = (8, FANOUT)
NUM_PROCESSES = 8
PATIENCE_S = 180.0
CREDENTIALS = Credentials(b"s" * 32, run="/runs/one", attempt=1)
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
COSTS = {
    "connect_cpu_s": "executor's CPU seconds until all nodes have joined",
    "connect_s": "seconds until then",
    "beat_cpu": "executor's CPU seconds per second of heartbeats",
    "freeze_cpu_s": "executor's CPU seconds of a round freeze, answers",
    "freeze_s": "seconds of such a round",
    "agents_freeze_cpu_s": "CPU seconds of all agents in such a round",
}
MOST_REPEATS = 4
OF_EXECUTOR = ("connect_cpu_s", "beat_cpu", "freeze_cpu_s")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES, help="numbers of nodes")
    parser.add_argument("--shapes", nargs="+", choices=("tree", "flat"), default=["tree", "flat"])
    parser.add_argument("--beats", type=int, default=4, help="rounds of heartbeats")
    parser.add_argument(
        "--interval", type=float, default=BEAT_INTERVAL_S, help="seconds between heartbeats"
    )
    parser.add_argument(
        "--rounds", type=int, default=15, help="rounds freeze, answers; of few nodes more"
    )
    parser.add_argument(
        "--passes", type=int, default=3, help="times that all sizes are measured, one after another"
    )
    parser.add_argument("--json", type=Path, help="file for all numbers")
    arguments = parser.parse_args()
    machine = describe_machine()
    trees: list[tuple[int, str, int]] = [
        (size, shape, fanout)
        for size, shape in itertools.product(arguments.sizes, arguments.shapes)
        for fanout in (FITTED_FANOUTS if shape == "tree" and size <= FITTED else (FANOUT,))
    ]
    passes = []
    for _ in range(arguments.passes):
        passes.append([measure(*tree, arguments) for tree in trees])
        print(json.dumps(passes[-1]), file=sys.stderr)
    rows = [merge(taken) for taken in zip(*passes, strict=True)]
    machine["load_after"] = os.getloadavg()
    models = {shape: {cost: fit(rows, shape, cost) for cost in COSTS} for shape in arguments.shapes}
    if arguments.json is not None:
        result = {"machine": machine, "rows": rows, "models": models}
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    show(rows, models)
    print(f"\n{machine['cpus']} CPUs, load {machine['load_before'][0]:.1f} before and", end=" ")
    print(f"{machine['load_after'][0]:.1f} after, Python {machine['python']}")


def measure(size: int, shape: str, fanout: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what a hub and so many nodes cost."""
    interval_s = arguments.interval
    # Nodes that have joined would beat, on the cores on which the others join.
    hub_module.BEAT_INTERVAL_S = float("inf")
    hub = Hub(attempt=1, silence_s=300.0)
    options = {"fanout": fanout, "num_agents": size} if shape == "tree" else {}
    (address,) = hub.listen_tcp(CREDENTIALS, only_here=True, **options)
    with agents(address, size, shape) as processes:
        row: dict[str, Any] = {
            "nodes": size,
            "shape": shape,
            "fanout": fanout,
            "processes": len(processes),
        }
        for process in processes:
            process.stdin.write(b"\n")
            process.stdin.flush()
        wall_s, cpu_s = timed(hub, lambda: hub.num_ranks == size)
        row |= {"connect_s": wall_s, "connect_cpu_s": cpu_s}
        hub_module.BEAT_INTERVAL_S = interval_s
        settled = time.monotonic() + 1.5 * interval_s
        timed(hub, lambda: time.monotonic() > settled)
        row["connections"] = hub.num_connections
        # Whole rounds: some seconds would hold four of them or five.
        timed_round(hub)
        taken = [timed_round(hub) for _ in range(arguments.beats)]
        row["beat_cpu"] = median(cpu_s / wall_s for wall_s, cpu_s in taken)
        assert len(hub.node_use()) == size
        # Rounds of freeze without heartbeats in between.
        hub_module.BEAT_INTERVAL_S = float("inf")
        quiet = time.monotonic() + interval_s / 2
        timed(hub, lambda: time.monotonic() > quiet)
        # Those of few nodes take a millisecond, and vary the more.
        rounds = arguments.rounds * min(MOST_REPEATS, max(1, max(SIZES) // size))
        walls, cpus, before = [], [], cpu_of(processes)
        for _ in range(rounds):
            answers = []
            hub.send("freeze")
            wall_s, cpu_s = timed(hub, lambda: len(answers) == size, answers)  # noqa: B023
            walls.append(wall_s)
            cpus.append(cpu_s)
        row |= {"freeze_s": median(walls), "freeze_cpu_s": median(cpus)}
        row["agents_freeze_cpu_s"] = (cpu_of(processes) - before) / rounds
        assert hub.lost_nodes == {}
    hub.close()
    return row


def merge(taken: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the row of several passes: what disturbs a machine for seconds meets one of them."""
    return taken[0] | {cost: median(row[cost] for row in taken) for cost in COSTS}


def timed(
    hub: Hub, condition: Callable[[], bool], answers: list[Any] | None = None
) -> tuple[float, float]:
    """Poll as an executor does until a condition holds; return wall and CPU seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{hub.num_agents} agents, {hub.num_ranks} ranks")
        frames = hub.poll(0.1)
        if answers is not None:
            answers += [frame for frame in frames if frame.op == "frozen"]
    return time.perf_counter() - wall, time.process_time() - cpu


def timed_round(hub: Hub) -> tuple[float, float]:
    """Poll until the hub asks for the next heartbeats; return wall and CPU seconds."""
    asked_at = hub._beat_at
    return timed(hub, lambda: hub._beat_at > asked_at)


@contextmanager
def agents(address: str, size: int, shape: str) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start the processes that hold agents, which wait for a line."""
    count = -(-size // NUM_PROCESSES)
    processes = []
    try:
        for first in range(0, size, count):
            here = min(count, size - first)
            command = [sys.executable, PROGRAMS / "many_agents.py", address, here, first, shape]
            processes.append(
                subprocess.Popen(
                    [str(word) for word in command],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env={
                        **os.environ,
                        "PYTHONPATH": str(Path(__file__).resolve().parent.parent),
                    },
                )
            )
        for process in processes:
            if process.stdout.readline() != b"ready\n":
                raise RuntimeError(f"{process.args} has ended")
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def cpu_of(processes: list[subprocess.Popen[bytes]]) -> float:
    """Return the CPU seconds that processes have used."""
    ticks = 0
    for process in processes:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS_PER_S


def features(size: int, shape: str, fanout: int, cost: str) -> list[float]:
    """Return what the coefficients of the model are multiplied with."""
    if shape == "flat":
        return [1.0, float(size)]
    levels = level_sizes(fanout, size)
    of_executor = [1.0, float(levels[0]), float(size)]
    if cost in OF_EXECUTOR:
        return of_executor
    hops = sum(depth * nodes for depth, nodes in enumerate(levels))
    return [*of_executor, float(len(levels) - 1), float(hops)]


def fit(rows: list[dict[str, Any]], shape: str, cost: str) -> dict[str, Any]:
    """Return the coefficients of a cost, and how far predictions are from what was measured."""
    own = [row for row in rows if row["shape"] == shape]
    fitted = [row for row in own if row["nodes"] <= FITTED and row[cost] > 0]
    # Short rounds of few agents may take no tick of the CPU's clock.
    wanted = np.array([row[cost] for row in fitted])
    matrix = np.array([features(row["nodes"], shape, row["fanout"], cost) for row in fitted])
    coefficients = np.zeros(len(features(FANOUT, shape, FANOUT, cost)))
    if fitted:
        weights = wanted**-0.5
        coefficients, _ = nnls(matrix * weights[:, None], wanted * weights)
    predicted = [
        float(np.dot(features(row["nodes"], shape, row["fanout"], cost), coefficients))
        for row in own
    ]
    errors = [
        guess / row[cost] - 1 if row[cost] > 0 else None
        for guess, row in zip(predicted, own, strict=True)
    ]
    return {"coefficients": coefficients.tolist(), "predicted": predicted, "errors": errors}


def show(rows: list[dict[str, Any]], models: dict[str, Any]) -> None:
    """Print the table, and how well larger sizes were predicted."""
    for cost, what in COSTS.items():
        print(f"\n{what}")
        numbers = Counter()
        for row in rows:
            model, number = models[row["shape"]][cost], numbers[row["shape"]]
            numbers[row["shape"]] += 1
            error = model["errors"][number]
            error = float("nan") if error is None else error
            shape = row["shape"] if row["shape"] == "flat" else f"tree of {row['fanout']}"
            kind = "fitted" if row["nodes"] <= FITTED else "predicted"
            verdict = "" if kind == "fitted" else (" within" if abs(error) <= GOAL else " beyond")
            verdict += f" {GOAL:.0%}" if verdict else ""
            print(
                f"  {row['nodes']:>6} nodes, {shape:>10}: {row[cost]:10.5f}   "
                f"{kind} {model['predicted'][number]:10.5f} ({error:+.0%}){verdict}"
            )


if __name__ == "__main__":
    main()
