"""The model of the suite: logistic regression with momentum; each rank has its own random state.

``python numpy_model.py --workers 3 --nodes 3``. A rank that begins again with the wrong random
state, step or momentum gives other losses from there on.
"""

import argparse

from hpctrain import (
    CheckpointConfig,
    DataParallelTrainer,
    FailureConfig,
    RunConfig,
    ScalingConfig,
    SlurmConfig,
)


def train(config):
    import json
    import time
    from pathlib import Path

    import numpy as np
    from mpi4py import MPI

    import hpctrain
    from hpctrain import Checkpoint

    comm = MPI.COMM_WORLD
    rank = hpctrain.get_context().get_world_rank()
    data = np.random.default_rng(7).normal(size=(300, 8))
    labels = (data @ np.arange(8) > 0).astype(float)
    mine = hpctrain.get_dataset_shard("rows")

    weights, momentum, first = np.zeros(8), np.zeros(8), 0
    random = np.random.default_rng([11, rank])
    if checkpoint := hpctrain.get_checkpoint():
        with checkpoint.as_directory() as folder:
            state = json.loads(Path(folder, f"rank-{rank}.json").read_text())
            weights, momentum = np.load(f"{folder}/weights.npy"), np.load(f"{folder}/momentum.npy")
        first = state["step"] + 1
        if not config["forgetful"]:
            random.bit_generator.state = state["random"]

    for step in range(first, config["steps"]):
        rows = random.choice(mine, size=16)
        guess = 1 / (1 + np.exp(-data[rows] @ weights))
        gradient = data[rows].T @ (guess - labels[rows]) / 16
        loss = -np.mean(np.log(np.where(labels[rows] > 0, guess, 1 - guess)))
        # Added up in the order of ranks, so that no library has a say in the last bit.
        gathered = comm.allgather((gradient, loss))
        momentum = 0.9 * momentum + sum(g for g, _ in gathered)
        weights = weights - 0.05 * momentum
        metrics = {"step": step, "loss": float(sum(one for _, one in gathered))}
        time.sleep(config["pause"])
        leaves = hpctrain.should_stop()
        if step % 3 < 2 and step + 1 < config["steps"] and not leaves:
            hpctrain.report(metrics)
            continue
        with hpctrain.checkpoint_dir() as folder:
            if rank == 0:
                np.save(f"{folder}/weights.npy", weights)
                np.save(f"{folder}/momentum.npy", momentum)
            state = {"random": random.bit_generator.state, "step": step}
            Path(folder, f"rank-{rank}.json").write_text(json.dumps(state))
            hpctrain.report(metrics, Checkpoint.from_directory(folder))
        if leaves:
            return


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--nodes", type=int)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--max-failures", type=int, default=3)
    parser.add_argument("--hang-timeout", type=float, help="seconds")
    parser.add_argument("--spare-nodes", type=int, default=0)
    parser.add_argument("--node-timeout", type=float, default=30.0, help="seconds")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds of work in a step")
    parser.add_argument("--forgetful", action="store_true", help="a mistake, to be found")
    options = parser.parse_args()
    DataParallelTrainer(
        train,
        train_loop_config={
            "steps": options.steps,
            "pause": options.pause,
            "forgetful": options.forgetful,
        },
        scaling_config=ScalingConfig(
            num_workers=options.workers,
            slurm=SlurmConfig(nodes=options.nodes, spare_nodes=options.spare_nodes),
        ),
        run_config=RunConfig(
            failure_config=FailureConfig(
                max_failures=options.max_failures,
                hang_timeout_s=options.hang_timeout,
                node_timeout_s=options.node_timeout,
            ),
            checkpoint_config=CheckpointConfig(num_to_keep=3),
        ),
        datasets={"rows": list(range(300))},
    ).fit()
