"""Train a classifier of scikit-learn's digits with a framework of one's own, over 4 MPI ranks.

The framework is ``averaging.py`` in this directory: plain NumPy, and gradients that ranks average.
"""

from __future__ import annotations

import argparse
from typing import Any

import averaging

from hpctrain import Checkpoint, DataParallelTrainer, RunConfig, ScalingConfig


def train_digits(config: dict[str, Any]) -> list[list[float]]:
    """Train by gradient descent, report after each step, and return the weights."""
    import numpy as np
    from sklearn.datasets import load_digits

    import hpctrain

    context = hpctrain.get_context()
    images, digits = load_digits(return_X_y=True)
    # Whole batches, and as many rows on each rank: then the mean of means is the mean.
    rows = np.arange(1792)[context.get_world_rank() :: context.get_world_size()]
    x = np.column_stack([images[rows] / 16, np.ones(len(rows))])
    y = np.eye(10)[digits[rows]]

    weights, first = np.zeros((65, 10)), 0
    if checkpoint := hpctrain.get_checkpoint():
        with checkpoint.as_directory() as directory:
            weights = np.load(f"{directory}/weights.npy")
        first = checkpoint.get_metadata()["step"] + 1
    for step in range(first, config["steps"]):
        scores = np.exp(x @ weights)
        chances = scores / scores.sum(axis=1, keepdims=True)
        loss = -np.log(chances[y == 1]).mean()
        slope = x.T @ (chances - y) / len(rows)
        loss, slope = averaging.average([loss, slope])
        weights -= config["lr"] * slope
        if context.get_world_rank() > 0 or step % 10 < 9:
            hpctrain.report({"step": step, "loss": float(loss)})
            continue
        with hpctrain.checkpoint_dir() as directory:
            np.save(f"{directory}/weights.npy", weights)
            saved = Checkpoint.from_directory(directory)
            saved.set_metadata({"step": step})
            hpctrain.report({"step": step, "loss": float(loss)}, saved)
    return weights.tolist()


def main() -> None:
    """Run the training and print its result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=4, help="MPI ranks")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--storage", default="hpctrain_runs", help="directory of runs")
    parser.add_argument("--name", help="name of the run; the same name resumes it")
    arguments = parser.parse_args()
    result = DataParallelTrainer(
        train_digits,
        train_loop_config={"steps": arguments.steps, "lr": 0.5},
        backend_config=averaging.AveragingConfig(dtype="float32"),
        scaling_config=ScalingConfig(num_workers=arguments.workers),
        run_config=RunConfig(name=arguments.name, storage_path=arguments.storage, verbose=0),
    ).fit()
    print(f"loss               {result.metrics['loss']:.4f}")
    print(f"run directory      {result.path}")


if __name__ == "__main__":
    main()
