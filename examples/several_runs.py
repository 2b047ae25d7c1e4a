"""Fit a line with several learning rates, each as a run of its own, and show which is the best.

On a login node each run is a Slurm job, and all wait in the queue at the same time. On a laptop
they run in the background, one after another. A second call finds finished runs and starts nothing.

    python examples/several_runs.py --rates 0.01 0.1 0.5
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

import hpctrain
from hpctrain import DataParallelTrainer, RunConfig, ScalingConfig, SlurmConfig
from hpctrain.collective import broadcast_from_rank_zero


def train(config: dict[str, Any]) -> None:
    """Fit y = 3 x by gradient descent; rank 0's data is that of all."""
    x = np.random.default_rng(hpctrain.get_context().get_world_rank()).normal(size=100)
    x = broadcast_from_rank_zero(x)
    slope = 0.0
    for _ in range(20):
        slope -= config["rate"] * float(np.mean(2 * (slope - 3.0) * x * x))
        hpctrain.report({"loss": float(np.mean((slope - 3.0) ** 2 * x * x))})


def main() -> None:
    """Submit a run for each rate, wait for all, and print their last losses."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rates", type=float, nargs="+", default=[0.01, 0.1, 0.5])
    parser.add_argument("--workers", type=int, default=2, help="MPI ranks of each run")
    parser.add_argument("--nodes", type=int, help="nodes of each run, on a cluster")
    parser.add_argument("--storage", default="hpctrain_runs", help="directory of runs")
    arguments = parser.parse_args()
    handles = [
        DataParallelTrainer(
            train,
            train_loop_config={"rate": rate},
            scaling_config=ScalingConfig(
                num_workers=arguments.workers, slurm=SlurmConfig(nodes=arguments.nodes)
            ),
            run_config=RunConfig(name=f"rate-{rate:g}", storage_path=arguments.storage),
        ).submit()
        for rate in arguments.rates
    ]
    hpctrain.wait(handles)
    losses = {handle.name: handle.result().metrics["loss"] for handle in handles}
    for name, loss in sorted(losses.items(), key=lambda item: item[1]):
        print(f"{name:12} loss {loss:.6f}")


if __name__ == "__main__":
    main()
