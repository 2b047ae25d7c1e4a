"""Train a small CNN on scikit-learn's handwritten digits, whose whole state all ranks save.

With ``--strategy fsdp`` parameters and the optimizer's state are split over the ranks, and each
writes what it has; with ``ddp`` all have the same, and each writes a part of it. Checkpoints are
reported within epochs, while the training continues. After any failure the run resumes from the
newest one, and comes to the same losses and weights, bit by bit.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from hpctrain import (
    CheckpointConfig,
    CheckpointUploadMode,
    FailureConfig,
    RunConfig,
    ScalingConfig,
    SlurmConfig,
)
from hpctrain.torch import TorchTrainer

if TYPE_CHECKING:
    import torch


def make_net() -> torch.nn.Module:
    """Return the untrained network, for ``hpctrain predict --model``."""
    from torch import nn

    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(32 * 4 * 4, 10),
    )


def train_digits(config: dict[str, Any]) -> None:
    """Train, and report the model's whole state every few steps."""
    import torch
    from sklearn.datasets import load_digits
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    import hpctrain.torch

    hpctrain.torch.enable_reproducibility(config["seed"])
    images, labels = (torch.tensor(array) for array in load_digits(return_X_y=True))
    digits = TensorDataset(images.float() / 16, labels)
    model = hpctrain.torch.prepare_model(make_net(), parallel_strategy=config["strategy"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.99)
    loader = hpctrain.torch.prepare_data_loader(
        DataLoader(digits, batch_size=config["batch_size"], shuffle=True, drop_last=True)
    )
    loop = hpctrain.torch.loop_state(loader=loader)
    checkpoint = hpctrain.get_checkpoint()
    if checkpoint:
        hpctrain.torch.load_state(checkpoint, model=model, optimizer=optimizer, scheduler=scheduler)
    loop.restore(checkpoint)
    for epoch in loop.epochs(config["epochs"]):
        for batch, target in loop.batches():
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch), target)
            loss.backward()
            optimizer.step()
            scheduler.step()
            metrics = {"epoch": epoch, "step": loop.step, "loss": loss.item()}
            last = loop.step == config["epochs"] * len(loader)
            stops = hpctrain.should_stop()
            if loop.step % config["steps_between"] and not last and not stops:
                hpctrain.report(metrics)
                continue
            hpctrain.torch.report_state(
                metrics,
                model=model,
                optimizer=optimizer,
                scheduler=scheduler,
                loop=loop,
                mode=CheckpointUploadMode.ASYNC,
            )
            if stops:
                return


def main() -> None:
    """Run the training and print its result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=4, help="MPI ranks")
    parser.add_argument("--strategy", choices=["ddp", "fsdp"], default="fsdp")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--nodes", type=int, help="nodes to spread them over, on a cluster")
    parser.add_argument("--gpu", action="store_true", help="one GPU for each rank")
    parser.add_argument("--storage", default="hpctrain_runs", help="directory of runs")
    parser.add_argument("--name", help="name of the run; the same name resumes it")
    arguments = parser.parse_args()
    result = TorchTrainer(
        train_digits,
        train_loop_config={
            "strategy": arguments.strategy,
            "epochs": arguments.epochs,
            "batch_size": 16,
            "lr": 3e-3,
            "seed": 7,
            "steps_between": 10,
        },
        scaling_config=ScalingConfig(
            num_workers=arguments.workers,
            use_gpu=arguments.gpu,
            slurm=SlurmConfig(nodes=arguments.nodes),
        ),
        run_config=RunConfig(
            name=arguments.name,
            storage_path=arguments.storage,
            failure_config=FailureConfig(max_failures=2),
            checkpoint_config=CheckpointConfig(num_to_keep=2),
        ),
    ).fit()
    print(f"loss           {result.metrics['loss']:.4f}")
    print(f"checkpoint     {result.checkpoint.path}")
    print(f"run directory  {result.path}")


if __name__ == "__main__":
    main()
