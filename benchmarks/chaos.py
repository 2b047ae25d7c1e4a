"""Runs that are killed, torn, flipped, filled or failed at random points, and compared bit by bit.

::

    python benchmarks/chaos.py --json chaos.json          # 500 points, about ten minutes
    python benchmarks/chaos.py --points 20 --seed 7
    python benchmarks/chaos.py --hostile 20               # jobs, as root; about ten minutes
    python benchmarks/chaos.py --hostile 50 --kinds fallback --nodes 4

Every point is a run of the suite's NumPy model on three ranks of this machine, or of its torch
model on two (``--model torch``; with ``--model states`` it reports its state). It passes if the run
ends with the reports and the last checkpoint of the undisturbed run, each of its attempts resumed
from the newest complete checkpoint, it took no attempt too many, and neither a process nor a file
is left. The second table says what looking for that checkpoint costs: a scan reads every byte, but
of a large state the headers only.

With ``--hostile N`` the run is a job on one node of a virtual cluster, and what a scheduler does to
jobs strikes it, each kind N times in random order; on several nodes each has one rank.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from arms import describe_machine

from hpctrain.rundir.staging import StagedPart, seal, staging_directory
from hpctrain.rundir.store import CheckpointStore
from hpctrain.testing.chaos.experiment import Comparison, Experiment
from hpctrain.testing.chaos.fault import Fault
from hpctrain.testing.chaos.kinds import KINDS
from hpctrain.testing.chaos.trial import Script
from hpctrain.testing.slurm import ClusterSpec, VirtualCluster, best_mode

SUITE = Path(__file__).resolve().parent.parent / "tests" / "chaos"
MODELS: dict[str, tuple[str, tuple[str, ...]]] = {
    "numpy": ("numpy_model.py", ("--workers", "3")),
    "torch": ("torch_model.py", ("--workers", "2")),
    "states": ("torch_model.py", ("--workers", "2", "--states")),
}
STRUCK = ("kill-rank", "kill-commit", "torn-write", "bit-flip", "truncate", "no-space", "io-error")
# They mount a filesystem.
STRUCK_BY_ROOT = ("brief-full-disk",)
HOSTILE = ("requeue", "requeue-hold", "suspend", "fallback")
SCAN_ROUNDS = 7
SCAN_LIMIT_S = 0.05


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--points", type=int, default=500)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--at-once", type=int, default=2, help="points that are tried at a time")
    parser.add_argument("--hostile", type=int, default=0, help="jobs that are struck, of each kind")
    parser.add_argument("--kinds", default=",".join(HOSTILE), help="with --hostile")
    parser.add_argument("--nodes", type=int, default=1, help="with --hostile")
    parser.add_argument("--model", choices=MODELS, default="numpy")
    parser.add_argument("--json", type=Path, help="file for every point")
    parser.add_argument("--keep", type=Path, help="folder for the runs that did not pass")
    return parser.parse_args()


def strike(arguments: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Disturb one run for each point; return what became of it."""
    name, args = MODELS[arguments.model]
    # By turns, so that every kind has its share.
    struck = (*STRUCK, *STRUCK_BY_ROOT) if os.geteuid() == 0 else STRUCK
    kinds = [struck[number % len(struck)] for number in range(arguments.points)]
    with ExitStack() as stack:
        cluster, at_once = None, arguments.at_once
        if arguments.hostile:
            nodes = arguments.nodes
            spec = ClusterSpec(num_nodes=nodes, mode=best_mode())
            # Slurm's sockets need a short path.
            state_dir = Path(tempfile.mkdtemp(prefix="hc-", dir="/tmp"))
            cluster = stack.enter_context(VirtualCluster.start(spec, state_dir=state_dir))
            # A suspended job stands still for longer than the timeout.
            args, at_once = (*args, "--nodes", str(nodes), "--node-timeout", "6"), 1
            if nodes > 1:
                args = (*args, "--workers", str(nodes))
            kinds = arguments.kinds.split(",") * arguments.hostile
            random.Random(arguments.seed).shuffle(kinds)
        script = Script(path=SUITE / name, args=args, cwd=folder)
        experiment = Experiment.begin(folder, script=script, cluster=cluster)
        return strike_each(arguments, experiment, kinds, at_once=at_once)


def strike_each(
    arguments: argparse.Namespace, experiment: Experiment, kinds: list[str], *, at_once: int
) -> list[dict[str, Any]]:
    """Disturb one run with each fault; return what became of it."""

    def strike_once(number: int) -> dict[str, Any]:
        chance = random.Random(f"{arguments.seed} {number}")
        fault = KINDS[kinds[number]].draw(experiment.undisturbed.trace, chance)
        comparison = experiment.disturb([fault])
        row = describe(number, fault, comparison)
        print(json.dumps(row), file=sys.stderr, flush=True)
        trial = comparison.result.log.parent
        if not comparison.passed and arguments.keep is not None:
            shutil.copytree(trial, arguments.keep / str(number))
        shutil.rmtree(trial)
        return row

    # A trial is processes of its own, and waits most of its time.
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(strike_once, range(len(kinds))))


def describe(number: int, fault: Fault, comparison: Comparison) -> dict[str, Any]:
    result = comparison.result
    # None where the disturbance came before the run had a directory.
    runs = list(result.outcome.values())
    return {
        "number": number,
        "fault": str(fault),
        "kind": fault.kind,
        "passed": comparison.passed,
        "problems": list(comparison.problems),
        "starts": result.starts,
        "attempts": result.attempts,
        "resumed_from": [report for run in runs for report in run.first_reports],
        "seconds": round(result.seconds, 2),
    }


def write_arrays(part: Path, *, num_files: int, size_mib: int) -> None:
    for number in range(num_files):
        content = np.random.default_rng(number).bytes(size_mib * 2**20 // num_files)
        (part / f"shard-{number}.npy").write_bytes(content)


def write_state(part: Path, *, num_files: int, size_mib: int) -> None:
    from hpctrain.torch import save_state

    assert num_files == 1
    save_state(part, weights={"w": np.random.default_rng(0).random(size_mib * 2**17)})


def scan(
    folder: Path, write: Callable[..., None], *, num_files: int, size_mib: int
) -> dict[str, Any]:
    """Measure how long it takes to find out that a checkpoint is good."""
    checkpoints = folder / f"scan-{write.__name__}-{size_mib}"
    part = staging_directory(checkpoints, attempt=1, report=1, rank=0)
    part.mkdir(parents=True)
    write(part, num_files=num_files, size_mib=size_mib)
    store = CheckpointStore(checkpoints)
    store.commit(
        attempt=1,
        report=1,
        world_size=1,
        metrics={},
        parts={0: StagedPart(files=tuple(seal(part)))},
    )
    seconds = []
    for _ in range(SCAN_ROUNDS):
        began = time.perf_counter()
        newest, complaints = store.newest_good()
        seconds.append(time.perf_counter() - began)
        assert newest is not None
        assert not complaints
    shutil.rmtree(checkpoints)
    kind = write.__name__.removeprefix("write_")
    return {
        "kind": kind,
        "files": num_files,
        "mib": size_mib,
        "seconds": seconds,
        "median_s": median(seconds),
    }


def main() -> None:
    arguments = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    machine = describe_machine()
    print(f"seed {arguments.seed}")
    with tempfile.TemporaryDirectory(prefix="hpctrain-chaos-") as folder:
        scans = [
            scan(Path(folder), write, num_files=files, size_mib=mib)
            for write, files, mib in (
                (write_arrays, 5, 1),
                (write_arrays, 8, 64),
                (write_state, 1, 60),
                (write_state, 1, 1024),
            )
        ]
        rows = strike(arguments, Path(folder))
    if arguments.json is not None:
        content = {"machine": machine, "seed": arguments.seed, "scans": scans}
        points = ",\n  ".join(map(json.dumps, rows))
        head = json.dumps(content, indent=1).removesuffix("\n}")
        arguments.json.write_text(f'{head},\n "points": [\n  {points}\n ]\n}}\n')
    kinds = collections.Counter(row["kind"] for row in rows)
    good = collections.Counter(row["kind"] for row in rows if row["passed"])
    for kind in kinds:
        print(f"{kind:<14}{good[kind]:>5} of {kinds[kind]}")
    print(f"{'together':<14}{good.total():>5} of {kinds.total()}")
    for found in scans:
        mark = "reached" if found["median_s"] <= SCAN_LIMIT_S else "MISSED"
        what = f"scan of {found['kind']}, {found['files']} files, {found['mib']} MiB"
        took = f"{found['median_s'] * 1e3:.1f} ms (aim {SCAN_LIMIT_S * 1e3:.0f} ms: {mark})"
        print(f"{what}: {took}")
    for row in rows:
        if not row["passed"]:
            print(f"{row['number']}: {row['fault']}: {'; '.join(row['problems'])}")
    sys.exit(0 if good.total() == kinds.total() else 1)


if __name__ == "__main__":
    main()
