"""Train a small CNN on scikit-learn's handwritten digits, data-parallel over 4 MPI ranks.

The same script runs on a laptop (``python examples/digits.py``), on a login node, inside sbatch or
salloc, and under ``srun`` or ``mpiexec``, with the same losses.
"""

from __future__ import annotations

import argparse
from typing import Any

from hpctrain import (
    Checkpoint,
    CheckpointConfig,
    CheckpointUploadMode,
    RunConfig,
    ScalingConfig,
    SlurmConfig,
)
from hpctrain.torch import TorchTrainer


def train_digits(config: dict[str, Any]) -> float:
    """Train, report after each epoch, and return the best held-out accuracy."""
    import torch
    from sklearn.datasets import load_digits
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    import hpctrain.torch

    hpctrain.torch.enable_reproducibility(config["seed"])
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(digits.target)
    # Every fifth image is held out; all ranks hold out the same ones.
    held_out = torch.arange(len(labels)) % 5 == 0
    train_set = TensorDataset(images[~held_out], labels[~held_out])

    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )
    checkpoint = hpctrain.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as directory:
            model.load_state_dict(torch.load(f"{directory}/model.pt", weights_only=True))
    model = hpctrain.torch.prepare_model(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)
    loader = hpctrain.torch.prepare_data_loader(
        DataLoader(train_set, batch_size=config["batch_size"], shuffle=True)
    )
    loop = hpctrain.torch.loop_state(loader=loader, optimizer=optimizer)
    loop.restore(checkpoint)
    device = hpctrain.torch.get_device()
    best = 0.0
    for epoch in loop.epochs(config["epochs"]):
        model.train()
        total = 0.0
        for batch, target in loop.batches():
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch), target)
            loss.backward()
            optimizer.step()
            total += loss.item()
        model.eval()
        with torch.no_grad():
            predicted = model(images[held_out].to(device)).argmax(1).cpu()
        accuracy = (predicted == labels[held_out]).float().mean().item()
        best = max(best, accuracy)
        metrics = {"epoch": epoch, "loss": total / len(loader), "accuracy": accuracy}
        with hpctrain.checkpoint_dir() as directory:
            loop.save(directory)
            if hpctrain.get_context().get_world_rank() == 0:
                plain = model.module if hasattr(model, "module") else model
                torch.save(plain.state_dict(), f"{directory}/model.pt")
            # The next epoch begins while this one's checkpoint is copied and committed.
            hpctrain.report(
                metrics,
                Checkpoint.from_directory(directory),
                checkpoint_upload_mode=CheckpointUploadMode.ASYNC,
            )
        if hpctrain.should_stop():
            break
    return best


def main() -> None:
    """Run the training and print its result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=4, help="MPI ranks")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--nodes", type=int, help="nodes to spread them over, on a cluster")
    parser.add_argument("--storage", default="hpctrain_runs", help="directory of runs")
    parser.add_argument("--name", help="name of the run; the same name resumes it")
    arguments = parser.parse_args()
    trainer = TorchTrainer(
        train_digits,
        train_loop_config={"epochs": arguments.epochs, "lr": 0.05, "batch_size": 16, "seed": 7},
        scaling_config=ScalingConfig(
            num_workers=arguments.workers, slurm=SlurmConfig(nodes=arguments.nodes)
        ),
        run_config=RunConfig(
            name=arguments.name,
            storage_path=arguments.storage,
            checkpoint_config=CheckpointConfig(
                num_to_keep=3, checkpoint_score_attribute="accuracy"
            ),
        ),
    )
    result = trainer.fit()
    best, metrics = result.best_checkpoints[-1]
    print(f"held-out accuracy  {metrics['accuracy']:.4f} (last {result.metrics['accuracy']:.4f})")
    print(f"best checkpoint    {best.path}")
    print(f"run directory      {result.path}")


if __name__ == "__main__":
    main()
