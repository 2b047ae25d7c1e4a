"""Whole sweeps that are struck at random points, and compared with the undisturbed sweep.

::

    python benchmarks/chaos_sweeps.py --json chaos_sweeps.json       # 50 sweeps
    python benchmarks/chaos_sweeps.py --sweeps 4 --seed 7
    python benchmarks/chaos_sweeps.py --sweeps 10 --nodes 3          # in allocations; as root
    python benchmarks/chaos_sweeps.py --seed 7 --first 30            # the 20 that are left

Each is a sweep of six trials of ``tests/chaos/sweep_model.py``, without a scheduler, with ASHA,
HyperBand or Population Based Training by turns, and up to three things happen to it: a rank, an
executor, the tuner or all of them are killed, a file is torn or damaged, a call on a file fails,
the tuner gets Ctrl-C or SIGTERM, with ``--nodes`` a node of the allocation loses its power. If the
tuner ends, the same script is started again, at once or some seconds later. It passes if

- no trial is lost or double, each has one end, and no two executors at the same time,
- its reports are 1 to n, each attempt begins after the newest complete checkpoint, and without a
  scheduler every number is that of the undisturbed sweep, and no attempt was made in vain,
- the best trial is the same (not with Population Based Training),
- the decisions of ASHA are those of a new ASHA that is sent the same reports,
- each step of a population follows from one that a trial of it had made, with its configuration,
- the files of each checkpoint have the digests that its manifest gives; where one was damaged and
  no attempt was to begin any more, verification finds it,
- neither a process, a claim nor a temporary file is left, and no traceback was printed. What is
  left by processes that were all killed on a node is removed by the next start there, which is
  made if the sweep needs that node no more.
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from arms import describe_machine

from hpctrain.testing.chaos.sweep_kinds import SWEEP_KINDS
from hpctrain.testing.chaos.sweep_suite import SCHEDULERS, begin_suite, kinds_for
from hpctrain.testing.slurm import ClusterSpec, VirtualCluster, best_mode

MODEL = Path(__file__).resolve().parent.parent / "tests" / "chaos" / "sweep_model.py"
_LONGEST_PAUSE_S = 3.0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sweeps", type=int, default=50)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument(
        "--first", type=int, default=0, help="number of the first sweep that is run"
    )
    parser.add_argument("--only", type=int, help="number of the one sweep that is run")
    parser.add_argument("--schedulers", default=",".join(SCHEDULERS))
    parser.add_argument("--nodes", type=int, default=0, help="nodes of a virtual cluster")
    parser.add_argument("--json", type=Path, help="file for every sweep")
    parser.add_argument("--keep", type=Path, help="folder for the sweeps that did not pass")
    return parser.parse_args()


def strike(
    arguments: argparse.Namespace, folder: Path, cluster: VirtualCluster | None
) -> list[dict[str, Any]]:
    """Disturb one sweep after the other; return what became of them."""
    schedulers = arguments.schedulers.split(",")
    experiments = {}
    rows = []
    numbers = (
        range(arguments.first, arguments.sweeps) if arguments.only is None else [arguments.only]
    )
    for number in numbers:
        chance = random.Random(f"{arguments.seed} {number}")
        scheduler = schedulers[number % len(schedulers)]
        if scheduler not in experiments:
            experiments[scheduler] = begin_suite(
                folder / scheduler, model=MODEL, scheduler=scheduler, cluster=cluster
            )
        experiment = experiments[scheduler]
        kinds = [chance.choice(kinds_for(scheduler, cluster)) for _ in range(chance.randint(1, 3))]
        faults = [SWEEP_KINDS[kind].draw(experiment.undisturbed.trace, chance) for kind in kinds]
        pause_s = chance.choice([0.0, chance.uniform(0, _LONGEST_PAUSE_S)])
        comparison = experiment.disturb(faults, pause_s=pause_s)
        result = comparison.result
        row = {
            "number": number,
            "scheduler": scheduler,
            "faults": [str(fault) for fault in faults],
            "kinds": kinds,
            "came_about": list(result.came_about),
            "passed": comparison.passed,
            "problems": list(comparison.problems),
            "starts": result.starts,
            "attempts": result.attempts,
            "seconds": round(result.seconds, 1),
        }
        rows.append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)
        place = result.log.parent
        if not comparison.passed and arguments.keep is not None:
            shutil.copytree(place, arguments.keep / str(number), dirs_exist_ok=True)
        shutil.rmtree(place)
    return rows


def main() -> None:
    arguments = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    machine = describe_machine()
    print(f"seed {arguments.seed}", flush=True)
    with ExitStack() as stack:
        prefix = "hpctrain-chaos-"
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=prefix)))
        cluster = None
        if arguments.nodes:
            spec = ClusterSpec(num_nodes=arguments.nodes, mode=best_mode())
            # Slurm's sockets need a short path.
            state_dir = Path(tempfile.mkdtemp(prefix="hc-", dir="/tmp"))
            cluster = stack.enter_context(VirtualCluster.start(spec, state_dir=state_dir))
        rows = strike(arguments, folder, cluster)
    if arguments.json is not None:
        content = {"machine": machine, "seed": arguments.seed, "nodes": arguments.nodes}
        sweeps = ",\n  ".join(map(json.dumps, rows))
        head = json.dumps(content, indent=1).removesuffix("\n}")
        arguments.json.write_text(f'{head},\n "sweeps": [\n  {sweeps}\n ]\n}}\n')
    sys.exit(report(rows))


def report(rows: Sequence[dict[str, Any]]) -> int:
    """Print how many sweeps passed, by scheduler and kind; return the exit status."""
    for key in ("scheduler", "kind"):
        found = collections.Counter[str]()
        good = collections.Counter[str]()
        for row in rows:
            names = {row["scheduler"]}
            if key == "kind":
                struck = zip(row["kinds"], row["came_about"], strict=True)
                names = {kind for kind, came_about in struck if came_about}
            found.update(names)
            good.update(names if row["passed"] else ())
        for name in found:
            print(f"{name:<20}{good[name]:>5} of {found[name]}")
    passed = sum(row["passed"] for row in rows)
    print(f"{'together':<20}{passed:>5} of {len(rows)}")
    print(f"{'not struck at all':<20}{sum(not any(row['came_about']) for row in rows):>5}")
    for row in rows:
        if not row["passed"]:
            print(f"{row['number']}: {', '.join(row['faults'])}: {'; '.join(row['problems'])}")
    return 0 if passed == len(rows) else 1


if __name__ == "__main__":
    main()
