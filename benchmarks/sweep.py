"""``sweep``: seconds of a sweep of trials that do nothing, here and with Ray Tune.

``python benchmarks/sweep.py 200 --ray PYTHON``: the second is a Python that has Ray, of an
environment of its own.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time

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


def main() -> None:
    """Print the seconds of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trials", type=int, nargs="?", default=200)
    parser.add_argument("--ray", help="a Python that has Ray")
    arguments = parser.parse_args()
    arms = {"hpctrain": (sys.executable, _OURS)}
    if arguments.ray:
        arms["Ray Tune"] = (arguments.ray, _RAYS)
    for name, (python, script) in arms.items():
        seconds = measure(python, script, arguments.trials)
        print(f"{name:<10} {arguments.trials} trials  {seconds:8.1f} s", flush=True)


if __name__ == "__main__":
    main()
