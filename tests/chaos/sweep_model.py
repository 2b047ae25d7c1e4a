"""The sweep of the suite: trials that follow from their configuration alone, to the last bit.

``python sweep_model.py --scheduler asha`` begins the sweep in the folder CHAOS_STORAGE, or goes on
with it. Each call of the scheduler is noted beside that folder.
"""

import argparse
import json
import os
from pathlib import Path

import hpctrain
from hpctrain import Checkpoint, CheckpointConfig, FailureConfig, RunConfig, tune
from hpctrain.tune.schedulers import (
    ASHAScheduler,
    FIFOScheduler,
    HyperBandScheduler,
    PopulationBasedTraining,
)

STEPS = 9
STORAGE = Path(os.environ["CHAOS_STORAGE"])
RATES = [0.01, 0.16, 0.02, 0.08, 0.04, 0.32]


def advance(w, lr):
    return w - lr * 2 * (w - 3)


def train(config):
    import time

    saved = hpctrain.get_checkpoint()
    state = {"step": 0, "w": 0.0} if saved is None else saved.to_dict()
    while state["step"] < STEPS:
        w = advance(state["w"], config["lr"])
        state = {"step": state["step"] + 1, "w": w}
        time.sleep(config["pause"])
        metrics = {**state, "lr": config["lr"], "loss": (w - 3) ** 2}
        if state["step"] % 2:
            hpctrain.report(metrics)
        else:
            hpctrain.report(metrics, Checkpoint.from_dict(state))


class Noting:
    """Writes down what it is sent, and what it decides."""

    def on_trial_add(self, trial_id):
        super().on_trial_add(trial_id)
        self._note("add", trial_id, {}, None)

    def on_result(self, trial_id, metrics):
        decision = super().on_result(trial_id, metrics)
        self._note("result", trial_id, metrics, decision)
        return decision

    def on_complete(self, trial_id, metrics):
        super().on_complete(trial_id, metrics)
        self._note("complete", trial_id, metrics, None)

    def _note(self, call, trial_id, metrics, decision):
        kept = {name: metrics[name] for name in ("training_iteration", "loss") if metrics}
        note = {"pid": os.getpid(), "call": call, "trial": trial_id, "metrics": kept}
        with open(STORAGE.parent / "notes.jsonl", "a") as file:
            file.write(json.dumps({**note, "decision": decision}) + "\n")


def make_scheduler(name):
    metric = {"metric": "loss", "mode": "min"}
    noting = {
        kind: type(f"Noting{kind.__name__}", (Noting, kind), {})
        for kind in (FIFOScheduler, ASHAScheduler, HyperBandScheduler, PopulationBasedTraining)
    }
    if name == "asha":
        return noting[ASHAScheduler](**metric, max_t=STEPS, grace_period=2, reduction_factor=2)
    if name == "hyperband":
        return noting[HyperBandScheduler](**metric, max_t=STEPS, reduction_factor=3)
    if name == "pbt":
        return noting[PopulationBasedTraining](
            **metric,
            time_attr="training_iteration",
            perturbation_interval=3,
            hyperparam_mutations={"lr": tune.uniform(0.01, 0.4)},
        )
    return noting[FIFOScheduler]()


def make_tuner(options):
    if tune.Tuner.can_restore(STORAGE / "sweep"):
        return tune.Tuner.restore(STORAGE / "sweep", train)
    return tune.Tuner(
        train,
        param_space={"lr": tune.grid_search(RATES[: options.trials]), "pause": options.pause},
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            scheduler=make_scheduler(options.scheduler),
            max_concurrent_trials=options.at_once,
            seed=7,
        ),
        run_config=RunConfig(
            storage_path=STORAGE,
            name="sweep",
            failure_config=FailureConfig(max_failures=3, node_timeout_s=5.0),
            checkpoint_config=CheckpointConfig(num_to_keep=3),
        ),
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--scheduler", default="fifo")
    parser.add_argument("--trials", type=int, default=6)
    parser.add_argument("--at-once", type=int, default=3)
    parser.add_argument("--pause", type=float, default=0.05, help="seconds of work in a step")
    grid = make_tuner(parser.parse_args()).fit()
    print("best", grid.get_best_result().path)
