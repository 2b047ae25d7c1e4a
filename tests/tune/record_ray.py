"""Record what Ray Tune's schedulers and variant generator decide, as ``recorded/ray.json``.

Run it with a Python that has Ray: ``python tests/tune/record_ray.py``. The tests compare with the
file, and need no Ray.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler, MedianStoppingRule
from ray.tune.search.variant_generator import generate_variants

ASHA = [
    {"max_t": 9, "grace_period": 1, "reduction_factor": 3},
    {"max_t": 20, "grace_period": 2, "reduction_factor": 2},
    {"max_t": 16, "grace_period": 1, "reduction_factor": 4, "brackets": 3},
    {"max_t": 8, "grace_period": 1, "reduction_factor": 2, "stop_last_trials": False},
    {"max_t": 50, "grace_period": 3, "reduction_factor": 2.5},
]
MEDIAN = [
    {"time_attr": "training_iteration", "grace_period": 1, "min_samples_required": 1},
    {"time_attr": "training_iteration", "grace_period": 3, "min_samples_required": 3},
]
SPACES: list[dict[str, Any]] = [
    {"a": [1, 2, 3], "b": ["x", "y"]},
    {"z": [1, 2], "a": {"inside": [True, False], "b": [0.5]}},
    {"list": [[1, 2], [3, 4, 5]]},
]


@dataclass(frozen=True)
class _Trial:
    trial_id: str


def record_scheduler(make: Any, options: dict[str, Any], mode: str, seed: int) -> dict[str, Any]:
    """Return reports in a random order, and the decision after each."""
    rng = random.Random(seed)
    np.random.seed(seed)
    scheduler = make(metric="m", mode=mode, **options)
    controller = SimpleNamespace(get_live_trials=list)
    trials = {f"t{i}": _Trial(f"t{i}") for i in range(12)}
    lengths = {name: rng.randrange(2, 25) for name in trials}
    levels = {name: rng.uniform(0, 1) for name in trials}
    done = dict.fromkeys(trials, 0)
    brackets, reports = {}, []
    for name, trial in trials.items():
        scheduler.on_trial_add(controller, trial)
        if make is ASHAScheduler:
            brackets[name] = scheduler._brackets.index(scheduler._trial_info[name])
    while done:
        name = rng.choice(sorted(done))
        done[name] += 1
        value = round(levels[name] + rng.uniform(-0.3, 0.3), 5)
        if rng.random() < 0.02:
            value = float("nan")
        result = {"training_iteration": done[name], "m": value}
        if done[name] == lengths[name]:
            scheduler.on_trial_complete(controller, trials[name], result)
            decision = "COMPLETE"
        else:
            decision = scheduler.on_trial_result(controller, trials[name], result)
        reports.append([name, done[name], None if np.isnan(value) else value, decision])
        if decision != "CONTINUE":
            del done[name]
    return {"options": options, "mode": mode, "brackets": brackets, "reports": reports}


def main() -> None:
    """Write the file."""
    recorded = {
        "ray": ray.__version__,
        "asha": [
            record_scheduler(ASHAScheduler, options, mode, seed)
            for options in ASHA
            for mode in ("min", "max")
            for seed in range(4)
        ],
        "median": [
            record_scheduler(MedianStoppingRule, options, mode, seed)
            for options in MEDIAN
            for mode in ("min", "max")
            for seed in range(6)
        ],
        "grids": [
            {"space": space, "variants": [spec for _, spec in generate_variants(_gridded(space))]}
            for space in SPACES
        ],
        "names": sorted(n for n in tune.__all__ if not n.startswith("_")),
    }
    path = Path(__file__).parent / "recorded" / "ray.json"
    path.write_text(json.dumps(recorded) + "\n", encoding="utf-8")


def _gridded(space: Any) -> Any:
    if isinstance(space, dict):
        return {key: _gridded(value) for key, value in space.items()}
    if isinstance(space, list) and space and isinstance(space[0], list):
        return [tune.grid_search(values) for values in space]
    return tune.grid_search(space)


if __name__ == "__main__":
    main()
