"""Train a small network on scikit-learn's handwritten digits with PyTorch Lightning, on MPI ranks.

The training function is an ordinary Lightning script but for four lines, which are marked. It takes
``pip install 'hpctrain[lightning,examples]'``.
"""

from __future__ import annotations

import argparse
from typing import Any

from hpctrain import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig, SlurmConfig
from hpctrain.torch import TorchTrainer


def train_digits(config: dict[str, Any]) -> None:
    """Fit, and report each epoch."""
    import lightning.pytorch as pl
    import torch
    from sklearn.datasets import load_digits
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    from hpctrain.lightning import (
        HpctrainEnvironment,
        ReportCallback,
        get_checkpoint_path,
        prepare_trainer,
    )

    class DigitsNet(pl.LightningModule):
        def __init__(self, lr: float) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.layers = nn.Sequential(
                nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 10)
            )

        def forward(self, pixels: Any) -> Any:
            return self.layers(pixels)

        def training_step(self, batch: Any, index: int) -> Any:
            loss = nn.functional.cross_entropy(self(batch[0]), batch[1])
            self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
            return loss

        def validation_step(self, batch: Any, index: int) -> None:
            hits = (self(batch[0]).argmax(1) == batch[1]).float()
            self.log("accuracy", hits.mean(), sync_dist=True)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=self.hparams["lr"], momentum=0.9)

    pl.seed_everything(config["seed"])
    digits = load_digits()
    pixels = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    held_out = torch.arange(len(labels)) % 5 == 0
    train_set = TensorDataset(pixels[~held_out], labels[~held_out])
    test_set = TensorDataset(pixels[held_out], labels[held_out])
    trainer = pl.Trainer(
        max_epochs=config["epochs"],
        strategy="ddp",
        logger=False,
        enable_progress_bar=False,
        plugins=[HpctrainEnvironment()],  # the ranks of the run
        callbacks=[ReportCallback()],  # metrics, checkpoints, and when to stop
    )
    trainer = prepare_trainer(trainer)  # the device of this rank
    trainer.fit(
        DigitsNet(lr=0.05),
        DataLoader(train_set, batch_size=config["batch_size"], shuffle=True),
        DataLoader(test_set, batch_size=64),
        ckpt_path=get_checkpoint_path(),  # where to go on
    )


def main() -> None:
    """Run the training and print its result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=4, help="MPI ranks")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--nodes", type=int, help="nodes to spread them over, on a cluster")
    parser.add_argument("--storage", default="hpctrain_runs", help="directory of runs")
    parser.add_argument("--name", help="name of the run; the same name resumes it")
    arguments = parser.parse_args()
    result = TorchTrainer(
        train_digits,
        train_loop_config={"epochs": arguments.epochs, "batch_size": 16, "seed": 7},
        scaling_config=ScalingConfig(
            num_workers=arguments.workers, slurm=SlurmConfig(nodes=arguments.nodes)
        ),
        run_config=RunConfig(
            name=arguments.name,
            storage_path=arguments.storage,
            failure_config=FailureConfig(max_failures=1),
            checkpoint_config=CheckpointConfig(
                num_to_keep=2, checkpoint_score_attribute="accuracy"
            ),
        ),
    ).fit()
    best, metrics = result.best_checkpoints[-1]
    print(f"held-out accuracy  {metrics['accuracy']:.4f}")
    print(f"best checkpoint    {best.path}")
    print(f"run directory      {result.path}")


if __name__ == "__main__":
    main()
