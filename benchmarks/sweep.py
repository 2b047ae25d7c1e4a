"""``sweep``: seconds of a sweep of trials that do nothing, here and with Ray Tune.

``python benchmarks/sweep.py 200 --ray PYTHON``: the second is a Python that has Ray, of an
environment of its own.

``python benchmarks/sweep.py 64 --nodes 4``: a sweep of trials of 2 to 20 seconds on so many virtual
nodes, and before it the same group alone in the empty allocation: five times, from the fit() of a
script of its own.

- *taken*: the share of the slots' seconds that trials had, from the first start to the last one:
  as long as there is a trial for each slot. Afterwards slots are empty for want of trials.
- *training*: the same from the first report of a trial in place of its start.
- from the k-th end of a trial to the start, and to the first report, of the k-th trial that had to
  wait for one: median, 99th percentile and largest.

With ``--torch`` a trial has a node, four ranks and torch.

``--json FILE`` keeps the numbers there, beside those of other commands.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from arms import describe_machine

from hpctrain.testing.slurm import ClusterSpec, VirtualCluster, best_mode

_CPUS_PER_NODE = 4
_ALONE = 5
_IS_TIME = re.compile(r"\d+\.\d+")

_OURS = """
import sys
import hpctrain
from hpctrain import RunConfig, tune
def train(config):
    hpctrain.report({"loss": config["x"]})
if __name__ == "__main__":
    results = tune.Tuner(
        train,
        param_space={"x": tune.uniform(0, 1)},
        tune_config=tune.TuneConfig(num_samples=int(sys.argv[1])),
        run_config=RunConfig(storage_path=sys.argv[2], name="sweep", verbose=0),
    ).fit()
    assert len(results) == int(sys.argv[1]) and not results.errors
"""
_RAYS = """
import os
import sys
import ray
from ray import tune
def train(config):
    tune.report({"loss": config["x"]})
if __name__ == "__main__":
    ray.init(num_cpus=len(os.sched_getaffinity(0)), include_dashboard=False, log_to_driver=False)
    results = tune.Tuner(
        train,
        param_space={"x": tune.uniform(0, 1)},
        tune_config=tune.TuneConfig(num_samples=int(sys.argv[1])),
        run_config=tune.RunConfig(storage_path=sys.argv[2], name="sweep", verbose=0),
    ).fit()
    assert len(results) == int(sys.argv[1]) and not results.errors
"""

_ON_NODES = """
import sys
import time
import hpctrain
from hpctrain import DataParallelTrainer, RunConfig, ScalingConfig, SlurmConfig, tune
def trainer(**options):
    if "torch" not in sys.argv:
        return DataParallelTrainer(train, **options)
    from hpctrain.torch import TorchTrainer
    scaling = ScalingConfig(num_workers=4, slurm=SlurmConfig(nodes=1))
    return TorchTrainer(train, scaling_config=scaling, **options)
def train(config):
    hpctrain.report({"step": 0})
    time.sleep(config["seconds"])
    hpctrain.report({"step": 1})
if __name__ == "__main__":
    name, trials, storage = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    shortest, longest = map(float, sys.argv[4:6])
    run_config = RunConfig(storage_path=storage, name=name, verbose=0)
    if trials == 0:
        print(time.time())
        trainer(train_loop_config={"seconds": 0.0}, run_config=run_config).fit()
        sys.exit()
    results = tune.Tuner(
        trainer(),
        param_space={"train_loop_config": {"seconds": tune.uniform(shortest, longest)}},
        tune_config=tune.TuneConfig(num_samples=trials, seed=0),
        run_config=run_config,
    ).fit()
    assert len(results) == trials and not results.errors
"""


def measure(python: str, script: str, trials: int) -> float:
    """Return the seconds of a sweep, from a cold process to its end."""
    with tempfile.TemporaryDirectory() as place:
        path = f"{place}/script.py"
        with open(path, "w", encoding="utf-8") as file:
            file.write(script)
        begun = time.perf_counter()
        subprocess.run(
            [python, path, str(trials), f"{place}/runs"],
            check=True,
            capture_output=True,
            timeout=3600,
        )
        return time.perf_counter() - begun


def measure_on_nodes(
    trials: int, num_nodes: int, seconds: tuple[float, float], *, with_torch: bool
) -> dict[str, float]:
    """Return how busy the slots of virtual nodes are, and how soon a slot is used again."""
    spec = ClusterSpec(num_nodes=num_nodes, cpus_per_node=_CPUS_PER_NODE, mode=best_mode())
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        script = Path(place, "script.py")
        script.write_text(_ON_NODES, encoding="utf-8")
        with VirtualCluster.start(spec, state_dir=Path(place, "c")) as cluster:
            words = [f"{place}/runs", *map(str, seconds), *(["torch"] if with_torch else [])]
            asked = [*((f"alone{number}", 0) for number in range(_ALONE)), ("sweep", trials)]
            script_lines = [
                shlex.join([sys.executable, str(script), name, str(number), *words])
                for name, number in asked
            ]
            done = subprocess.run(
                [
                    *("sbatch", "--wait", f"--output={place}/printed", f"--nodes={num_nodes}"),
                    *(f"--ntasks-per-node={_CPUS_PER_NODE}", f"--wrap={' && '.join(script_lines)}"),
                ],
                env={**os.environ, **cluster.environ, "HPCTRAIN_LAUNCHER": ""},
                stdout=subprocess.DEVNULL,
                timeout=3600,
            )
        printed = Path(place, "printed").read_text(encoding="utf-8")
        if done.returncode != 0:
            raise SystemExit(printed)
        runs = Path(place, "runs")
        begun = [float(line) for line in printed.splitlines() if _IS_TIME.fullmatch(line)]
        cold = [_first_step(runs / f"alone{i}") - time for i, time in enumerate(begun)]
        events = list(_read(runs / "sweep" / "tune.jsonl"))
        slots_per_node = 1 if with_torch else _CPUS_PER_NODE
        found = _use_of(events, runs / "sweep", slots_per_node=slots_per_node)
        found["fit() to the first step in an empty allocation, s"] = statistics.median(cold)
        return found


def _use_of(
    events: list[Mapping[str, Any]], sweep: Path, *, slots_per_node: int
) -> dict[str, float]:
    started = {e["trial"]: e for e in events if e["event"] == "trial-started"}
    begun = {name: event["time"] for name, event in started.items()}
    ended = {e["trial"]: e["time"] for e in events if e["event"] == "trial-ended"}
    first = {name: _first_step(sweep / name) for name in begun}
    slots = slots_per_node * len({node for event in started.values() for node in event["nodes"]})
    start, last = min(begun.values()), max(begun.values())
    found: dict[str, float] = {}
    for what, of in (("taken", begun), ("training", first)):
        busy = sum(max(0.0, min(ended[name], last) - of[name]) for name in begun)
        found[f"{what}, of {slots} slots"] = busy / (slots * (last - start))
    have_waited = sorted(begun, key=begun.__getitem__)[slots:]
    pairs = [*zip(have_waited, sorted(ended.values()), strict=False)]
    for what, of in (("start of the next", begun), ("next one's first step", first)):
        if gaps := sorted(of[name] - end for name, end in pairs):
            found[f"end of a trial to the {what}, s"] = statistics.median(gaps)
            found[f"  to the {what}, 99 of 100, s"] = gaps[round(0.99 * (len(gaps) - 1))]
            found[f"  to the {what}, at most, s"] = gaps[-1]
    return found


def _first_step(run: Path) -> float:
    return float(next(_read(run / "metrics.jsonl"))["time"])


def _read(path: Path) -> Iterator[Mapping[str, Any]]:
    with open(path, encoding="utf-8") as file:
        yield from map(json.loads, file)


def main() -> None:
    """Print the numbers of a row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trials", type=int, nargs="?", default=200)
    parser.add_argument("--ray", help="a Python that has Ray")
    parser.add_argument("--nodes", type=int, help="virtual nodes for a sweep in an allocation")
    parser.add_argument("--torch", action="store_true", help="trials with four ranks and torch")
    parser.add_argument("--seconds", type=float, nargs=2, default=(2.0, 20.0), help="of a trial")
    parser.add_argument("--json", type=Path, help="file for the numbers")
    arguments = parser.parse_args()
    machine = describe_machine()
    if arguments.nodes:
        seconds = tuple(arguments.seconds)
        row = f"{arguments.trials} trials of {seconds[0]:g} to {seconds[1]:g} s"
        row += f", {arguments.nodes} nodes" + (", four ranks with torch" if arguments.torch else "")
        found = measure_on_nodes(
            arguments.trials, arguments.nodes, seconds, with_torch=arguments.torch
        )
    else:
        row = f"{arguments.trials} trials that do nothing"
        arms = {"hpctrain, s": (sys.executable, _OURS)}
        if arguments.ray:
            arms["Ray Tune, s"] = (arguments.ray, _RAYS)
        found = {name: measure(*arm, arguments.trials) for name, arm in arms.items()}
    print(row)
    for name, value in found.items():
        print(f"  {name:<52} {value:7.2f}", flush=True)
    if arguments.json is not None:
        rows = json.loads(arguments.json.read_text()) if arguments.json.exists() else {}
        machine["load_after"] = os.getloadavg()
        rows[row] = {"machine": machine, "numbers": found}
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
