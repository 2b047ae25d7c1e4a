"""Train a small network on scikit-learn's handwritten digits with Horovod, on MPI ranks.

Horovod is built once, by ``hpctrain install horovod``. The same script runs on a laptop, on a login
node, inside sbatch or salloc, and under ``srun`` or ``mpiexec``::

    python examples/horovod_digits.py
    python examples/horovod_digits.py --transport gloo --max-replacements 2     # elastic
"""

from __future__ import annotations

import argparse
import os
from typing import Any

from hpctrain import Checkpoint, RunConfig, ScalingConfig, SlurmConfig
from hpctrain.horovod import HorovodConfig, HorovodTrainer


def make_network() -> Any:
    """Return the network, which the predictor needs too."""
    import torch
    from torch import nn

    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def load_digits() -> tuple[Any, ...]:
    """Return pixels and labels to train on, and every fifth of them, which is held out."""
    import torch
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    held_out = torch.arange(len(labels)) % 5 == 0
    return pixels[~held_out], labels[~held_out], pixels[held_out], labels[held_out]


def train_epoch(model: Any, optimizer: Any, config: dict[str, Any], epoch: int) -> float:
    """Train on this worker's part of each batch of all workers; return the mean loss."""
    import horovod.torch as hvd
    import torch
    from torch import nn

    pixels, labels, _, _ = load_digits()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
    total = torch.zeros(())
    batches = order.split(config["batch_size"])[:-1]
    for batch in batches:
        mine = batch[hvd.rank() :: hvd.size()]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(pixels[mine]), labels[mine])
        loss.backward()
        optimizer.step()
        total += loss.detach()
    return float(hvd.allreduce(total / len(batches), name="loss"))


def measure(model: Any) -> float:
    """Return the part of the held-out digits that is named right."""
    import torch

    _, _, pixels, labels = load_digits()
    with torch.no_grad():
        return (model(pixels).argmax(1) == labels).float().mean().item()


def save(model: Any, optimizer: Any, epoch: int, metrics: dict[str, float]) -> None:
    """Report an epoch, with a checkpoint from rank 0."""
    import horovod.torch as hvd
    import torch

    import hpctrain

    with hpctrain.checkpoint_dir() as directory:
        saved = None
        if hvd.rank() == 0:
            torch.save(model.state_dict(), f"{directory}/model.pt")
            torch.save(
                {"epoch": epoch, "optimizer": optimizer.state_dict()}, f"{directory}/training.pt"
            )
            saved = Checkpoint.from_directory(directory)
        hpctrain.report({"epoch": epoch, **metrics}, saved)


def prepare(config: dict[str, Any]) -> tuple[Any, Any, int]:
    """Return network, optimiser and the first epoch: after the newest checkpoint."""
    import horovod.torch as hvd
    import torch

    import hpctrain

    model = make_network()
    # Before its state is loaded: Horovod makes a new optimizer, which knows no momentum.
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9),
        named_parameters=model.named_parameters(),
    )
    first = 0
    checkpoint = hpctrain.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as directory:
            model.load_state_dict(torch.load(f"{directory}/model.pt", weights_only=True))
            training = torch.load(f"{directory}/training.pt", weights_only=True)
        optimizer.load_state_dict(training["optimizer"])
        first = training["epoch"] + 1
    return model, optimizer, first


def train_digits(config: dict[str, Any]) -> float:
    """Train, report after each epoch, and return the held-out accuracy."""
    import horovod.torch as hvd

    import hpctrain

    model, optimizer, first = prepare(config)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    for epoch in range(first, config["epochs"]):
        loss = train_epoch(model, optimizer, config, epoch)
        save(model, optimizer, epoch, {"loss": loss, "accuracy": measure(model)})
        if hpctrain.should_stop():
            break
    return measure(model)


def train_elastic(config: dict[str, Any]) -> float:
    """Do the same where a worker that dies is replaced."""
    import horovod.torch as hvd

    import hpctrain.horovod

    model, optimizer, first = prepare(config)

    @hvd.elastic.run
    def train(state: Any) -> None:
        while state.epoch < config["epochs"]:
            loss = train_epoch(state.model, state.optimizer, config, state.epoch)
            metrics = {"loss": loss, "accuracy": measure(state.model)}
            save(state.model, state.optimizer, state.epoch, metrics)
            state.epoch += 1
            state.commit()
            if hpctrain.should_stop():
                break

    state = hpctrain.horovod.elastic_state(model, optimizer, epoch=first)
    train(state)
    return measure(state.model)


def main() -> None:
    """Run the training, predict from its checkpoint, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--workers", type=int, default=4, help="MPI ranks")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--transport", choices=["auto", "mpi", "gloo"], default="auto")
    parser.add_argument("--max-replacements", type=int, default=0, help="of dead workers")
    parser.add_argument("--nodes", type=int, help="nodes to spread them over, on a cluster")
    parser.add_argument("--storage", default="hpctrain_runs", help="directory of runs")
    parser.add_argument("--name", help="name of the run; the same name resumes it")
    arguments = parser.parse_args()
    # Tensors are fused as they come, which differs from run to run in the last digits.
    os.environ.setdefault("HOROVOD_FUSION_THRESHOLD", "0")
    result = HorovodTrainer(
        train_elastic if arguments.max_replacements else train_digits,
        train_loop_config={"epochs": arguments.epochs, "lr": 0.1, "batch_size": 64},
        horovod_config=HorovodConfig(
            transport=arguments.transport, max_replacements=arguments.max_replacements
        ),
        scaling_config=ScalingConfig(
            num_workers=arguments.workers, slurm=SlurmConfig(nodes=arguments.nodes)
        ),
        run_config=RunConfig(name=arguments.name, storage_path=arguments.storage),
    ).fit()
    print(f"held-out accuracy  {result.metrics['accuracy']:.4f}")
    print(f"checkpoint         {result.checkpoint.path}")
    print(f"run directory      {result.path}")


if __name__ == "__main__":
    main()
