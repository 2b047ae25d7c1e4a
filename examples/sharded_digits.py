"""Train a small network on scikit-learn's handwritten digits with JAX, sharded over 4 MPI ranks.

Parameters, the optimizer's state and batches are split over the devices of all ranks: each has a
quarter of them, and XLA gathers what a layer needs, as FSDP does. The same script runs on a laptop,
on a login node, inside sbatch or salloc, and under ``srun`` or ``mpiexec``.
"""

from __future__ import annotations

import argparse
from typing import Any

from hpctrain import RunConfig, ScalingConfig, SlurmConfig
from hpctrain.jax import JaxTrainer


def predict_digits(params: dict[str, Any], images: Any) -> Any:
    """Return a score for each digit, for ``hpctrain predict --model``."""
    import jax

    hidden = jax.nn.relu(images @ params["hidden"]["weights"] + params["hidden"]["bias"])
    return hidden @ params["output"]["weights"] + params["output"]["bias"]


def train_digits(config: dict[str, Any]) -> dict[str, Any]:
    """Train, report after each epoch, and return the last metrics."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
    from sklearn.datasets import load_digits

    import hpctrain
    from hpctrain.jax import JaxCheckpoint

    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32)
    # Every fifth image is held out; all ranks hold out the same ones.
    held_out = np.arange(len(labels)) % 5 == 0

    mesh = Mesh(np.array(jax.devices()), ("data",))
    whole, split = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ([], ["data"]))

    def init(key: Any) -> dict[str, Any]:
        def layer(key: Any, inputs: int, outputs: int) -> dict[str, Any]:
            weights = jax.random.normal(key, (inputs, outputs)) * (2 / inputs) ** 0.5
            return {"weights": weights, "bias": jax.numpy.zeros(outputs)}

        first, second = jax.random.split(key)
        return {"hidden": layer(first, 64, 128), "output": layer(second, 128, 10)}

    def sharding(array: Any) -> NamedSharding:
        # An array that does not split evenly, as the bias of 10 outputs, is whole on each device.
        return split if array.shape[0] % mesh.size == 0 else whole

    def loss_of(params: dict[str, Any], images: Any, labels: Any) -> Any:
        scores = jax.nn.log_softmax(predict_digits(params, images))
        return -jax.numpy.take_along_axis(scores, labels[:, None], axis=1).mean()

    key = jax.random.key(config["seed"])
    shardings = jax.tree.map(sharding, jax.eval_shape(init, key))
    params = jax.jit(init, out_shardings=shardings)(key)
    momentum = jax.tree.map(jax.numpy.zeros_like, params)

    @jax.jit
    def step(params: Any, momentum: Any, images: Any, labels: Any) -> Any:
        loss, slope = jax.value_and_grad(loss_of)(params, images, labels)
        momentum = jax.tree.map(lambda m, s: 0.9 * m + s, momentum, slope)
        params = jax.tree.map(lambda p, m: p - config["lr"] * m, params, momentum)
        keep = jax.lax.with_sharding_constraint
        return keep(params, shardings), keep(momentum, shardings), loss

    @jax.jit
    def accuracy_of(params: Any, images: Any, labels: Any) -> Any:
        return (predict_digits(params, images).argmax(axis=1) == labels).mean()

    first_epoch = 0
    if checkpoint := hpctrain.get_checkpoint():
        like = {"params": params, "momentum": momentum, "epoch": 0}
        state = JaxCheckpoint(checkpoint.path).get_state(like)
        params, momentum, first_epoch = state["params"], state["momentum"], state["epoch"] + 1

    context = hpctrain.get_context()
    batch = config["batch_size"]
    share = batch // context.get_world_size()
    mine = slice(context.get_world_rank() * share, (context.get_world_rank() + 1) * share)
    for epoch in range(first_epoch, config["epochs"]):
        order = np.random.default_rng([config["seed"], epoch]).permutation(
            np.flatnonzero(~held_out)
        )
        losses = []
        for start in range(0, len(order) - batch + 1, batch):
            # Of the batch that all ranks share, this one reads its part.
            rows = order[start : start + batch][mine]
            given = [
                jax.make_array_from_process_local_data(split, column[rows])
                for column in (images, labels)
            ]
            params, momentum, loss = step(params, momentum, *given)
            losses.append(loss)
        accuracy = accuracy_of(params, images[held_out], labels[held_out])
        metrics = {
            "epoch": epoch,
            "loss": float(np.mean([float(loss) for loss in losses])),
            "accuracy": float(accuracy),
        }
        state = {"params": params, "momentum": momentum, "epoch": epoch}
        # Every rank writes its shards, into the directory that becomes the checkpoint.
        hpctrain.report(metrics, JaxCheckpoint.from_state(state))
        if hpctrain.should_stop():
            break
    return metrics


def main() -> None:
    """Run the training and print its result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=4, help="MPI ranks")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--nodes", type=int, help="nodes to spread them over, on a cluster")
    parser.add_argument("--gpu", action="store_true", help="one GPU for each rank")
    parser.add_argument("--storage", default="hpctrain_runs", help="directory of runs")
    parser.add_argument("--name", help="name of the run; the same name resumes it")
    arguments = parser.parse_args()
    result = JaxTrainer(
        train_digits,
        train_loop_config={"epochs": arguments.epochs, "lr": 0.05, "batch_size": 64, "seed": 7},
        scaling_config=ScalingConfig(
            num_workers=arguments.workers,
            use_gpu=arguments.gpu,
            slurm=SlurmConfig(nodes=arguments.nodes),
        ),
        run_config=RunConfig(name=arguments.name, storage_path=arguments.storage),
    ).fit()
    print(f"held-out accuracy  {result.metrics['accuracy']:.4f}")
    print(f"checkpoint         {result.checkpoint.path}")
    print(f"run directory      {result.path}")


if __name__ == "__main__":
    main()
