"""Record what Ray Tune's schedulers and variant generator decide, as ``recorded/ray.json``.

Run it with a Python that has Ray: ``python tests/tune/record_ray.py``. The tests compare with the
file, and need no Ray.
"""

from __future__ import annotations

import json
import random
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import ray
from ray import tune
from ray.tune.schedulers import (
    ASHAScheduler,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
)
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
PBT: list[dict[str, Any]] = [
    {"perturbation_interval": 3},
    {"perturbation_interval": 2, "quantile_fraction": 0.5, "resample_probability": 0.6},
    {"perturbation_interval": 4, "burn_in_period": 9, "perturbation_factors": [2.0, 0.5]},
    {"perturbation_interval": 1, "quantile_fraction": 0.125, "custom_explore_fn": True},
    {"perturbation_interval": 3, "quantile_fraction": 0.0},
]
HYPERBAND: list[dict[str, Any]] = [
    {"max_t": 9, "reduction_factor": 3},
    {"max_t": 16, "reduction_factor": 2},
    {"max_t": 20, "reduction_factor": 4},
    {"max_t": 8, "reduction_factor": 2, "stop_last_trials": False},
    {"max_t": 10, "reduction_factor": 2.5},
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


class _Member:
    """A trial of a population, as far as the scheduler looks at it."""

    def __init__(self, number: int, rng: random.Random) -> None:
        self.trial_id = self.experiment_tag = f"t{number}"
        self.status: str = "RUNNING"
        self.checkpoint: str | None = None
        self.is_saving = False
        self.last_result: dict[str, Any] = {}
        self.temporary_state = SimpleNamespace(saving_to=None)
        config = SimpleNamespace(num_to_keep=None)
        manager = SimpleNamespace(checkpoint_config=config, _latest_checkpoint_result=None)
        self.run_metadata = SimpleNamespace(checkpoint_manager=manager)
        nested = {"momentum": rng.uniform(0.5, 0.99), "depth": rng.choice([1, 2, 3]), "kept": "x"}
        self.config = {
            "lr": rng.uniform(1e-4, 1e-1),
            "size": rng.choice([16, 32, 64, 100]),
            "steps": rng.randint(1, 100),
            "flag": rng.random() < 0.5,
            "nested": nested,
        }

    def is_finished(self) -> bool:
        """Return whether it has ended."""
        return self.status == "TERMINATED"

    def set_config(self, config: dict[str, Any]) -> None:
        """Take another configuration."""
        self.config = config

    def set_experiment_tag(self, tag: str) -> None:
        """Take another name, which nothing looks at."""


def mutations(rng: Any) -> dict[str, Any]:
    """Return hyperparameters of each kind that draw from the same generator as the rule."""
    return {
        "lr": lambda: rng.uniform(1e-4, 1e-1),
        "size": [16, 32, 64, 128],
        "nested": {"momentum": lambda: rng.uniform(0.5, 0.99), "depth": [1, 2, 3]},
        "steps": lambda: rng.randint(1, 100),
        "flag": lambda: rng.random() < 0.5,
    }


def custom(config: dict[str, Any]) -> dict[str, Any]:
    """Keep a hyperparameter inside of bounds."""
    return {**config, "lr": min(config["lr"], 0.05)}


def record_pbt(options: dict[str, Any], mode: str, seed: int, *, synch: bool) -> dict[str, Any]:
    """Return reports of a population in a random order, and what becomes of its members."""
    rng = random.Random(seed)
    random.seed(seed)
    given = {**options, "custom_explore_fn": custom} if "custom_explore_fn" in options else options
    scheduler = PopulationBasedTraining(
        time_attr="training_iteration",
        metric="m",
        mode=mode,
        hyperparam_mutations=mutations(random),
        log_config=False,
        synch=synch,
        **given,
    )
    members = [_Member(number, rng) for number in range(8)]
    begun = {each.trial_id: each.config for each in members}
    unsaved = {"t3"} if seed % 2 else set()
    for each in members:
        each.checkpoint = None if each.trial_id in unsaved else "its newest"
    done, levels = dict.fromkeys(begun, 0), {name: rng.uniform(0, 1) for name in begun}
    exploits: list[tuple[str, str]] = []

    def save(trial: _Member, result: Any) -> str | None:
        return None if trial.trial_id in unsaved else "saved"

    def pause(trial: _Member, should_checkpoint: bool) -> None:
        trial.status = "PAUSED"

    controller = SimpleNamespace(
        search_alg=None,
        get_trials=lambda: members,
        get_live_trials=lambda: [each for each in members if not each.is_finished()],
        _schedule_trial_save=save,
        pause_trial=pause,
    )
    exploit = scheduler._exploit

    def note(controller: Any, trial: _Member, donor: _Member) -> None:
        exploits.append((trial.trial_id, donor.trial_id))
        exploit(controller, trial, donor)
        done[trial.trial_id] = done[donor.trial_id]

    scheduler._exploit = note
    for each in members:
        each.status = "PENDING" if synch else "RUNNING"
        scheduler.on_trial_add(controller, each)
    by_name, steps = {each.trial_id: each for each in members}, []
    for _ in range(90):
        chosen = []
        while synch and sum(each.status == "RUNNING" for each in members) < 3:
            trial = scheduler.choose_trial_to_run(controller)
            chosen.append(None if trial is None else trial.trial_id)
            if trial is None:
                break
            trial.status = "RUNNING"
        name = rng.choice([each.trial_id for each in members if each.status == "RUNNING"])
        trial = by_name[name]
        done[name] += 1
        result = {"training_iteration": done[name], "m": round(levels[name] + rng.random(), 5)}
        report = [name, done[name], result["m"]]
        if not synch and done[name] > 12 and rng.random() < 0.2 and len(steps) > 50:
            scheduler.on_trial_complete(controller, trial, result)
            trial.status, decision = "TERMINATED", "COMPLETE"
            done.pop(name)
        else:
            exploits.clear()
            decision = scheduler.on_trial_result(controller, trial, result)
            if decision == "PAUSE" or trial.status == "PAUSED":
                trial.status, decision = "PAUSED", "PAUSE"
        moved = [[to, donor, by_name[to].config] for to, donor in exploits]
        steps.append([chosen, report, decision, moved])
        exploits.clear()
        if not synch and trial.status == "PAUSED":
            trial.status = "RUNNING"
        if sum(not each.is_finished() for each in members) < 2:
            break
    return {
        "options": options,
        "mode": mode,
        "seed": seed,
        "synch": synch,
        "configs": begun,
        "unsaved": sorted(unsaved),
        "steps": steps,
    }


def record_hyperband(options: dict[str, Any], mode: str, seed: int) -> dict[str, Any]:
    """Return reports of trials in a random order, and what becomes of all of them."""
    rng = random.Random(seed)
    scheduler = HyperBandScheduler(metric="m", mode=mode, **options)
    members = [_Member(number, rng) for number in range(30)]
    done, levels = {each.trial_id: 0 for each in members}, [rng.random() for _ in members]
    stopped: list[str] = []

    def stop(trial: _Member) -> None:
        stopped.append(trial.trial_id)
        trial.status = "TERMINATED"
        scheduler.on_trial_remove(controller, trial)

    controller = SimpleNamespace(stop_trial=stop)
    for each in members:
        each.status = "PENDING"
        scheduler.on_trial_add(controller, each)
    steps: list[Any] = []
    while len(steps) < 300:
        chosen = []
        while sum(each.status == "RUNNING" for each in members) < 4:
            trial = scheduler.choose_trial_to_run(controller)
            chosen.append(None if trial is None else trial.trial_id)
            if trial is None:
                break
            trial.status = "RUNNING"
        running = [number for number, each in enumerate(members) if each.status == "RUNNING"]
        if not running:
            steps.append([chosen, None, "", []])
            break
        number = rng.choice(running)
        trial = members[number]
        done[trial.trial_id] += 1
        value = round(levels[number] + rng.uniform(-0.3, 0.3), 5)
        result = {"training_iteration": done[trial.trial_id], "m": value}
        decision = scheduler.on_trial_result(controller, trial, result)
        report = [trial.trial_id, done[trial.trial_id], value]
        if decision == "PAUSE":
            trial.status = "PAUSED"
        elif decision == "STOP":
            trial.status = "TERMINATED"
            scheduler.on_trial_remove(controller, trial)
        steps.append([chosen, report, decision, list(stopped)])
        stopped.clear()
    return {"options": options, "mode": mode, "steps": steps}


def record_fast_trials() -> dict[str, Any]:
    """Return how many reports trials make that do nothing else, one trial after the other."""

    def train(config: dict[str, Any]) -> None:
        for i in range(100):
            tune.report({"acc": config["q"] * i})

    order = [1, 5, 3, 8, 2, 7, 6, 4]
    options = {"max_t": 100, "grace_period": 1, "reduction_factor": 4}
    with tempfile.TemporaryDirectory() as storage:
        grid = tune.Tuner(
            train,
            param_space={"q": tune.grid_search(order)},
            tune_config=tune.TuneConfig(
                metric="acc",
                mode="max",
                max_concurrent_trials=1,
                scheduler=ASHAScheduler(**options),
            ),
            run_config=tune.RunConfig(storage_path=storage, verbose=0),
        ).fit()
    reports = [result.metrics["training_iteration"] for result in grid]
    return {"options": options, "q": order, "reports": reports}


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
        "pbt": [
            record_pbt(options, mode, seed, synch=synch)
            for synch in (False, True)
            for options in PBT
            for mode in ("min", "max")
            for seed in range(2)
        ],
        "hyperband": [
            record_hyperband(options, mode, seed)
            for options in HYPERBAND
            for seed, mode in enumerate(("min", "max"))
        ],
        "grids": [
            {"space": space, "variants": [spec for _, spec in generate_variants(_gridded(space))]}
            for space in SPACES
        ],
        "names": sorted(n for n in tune.__all__ if not n.startswith("_")),
        "fast": record_fast_trials(),
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
