"""A shard's batches, given to Lightning's Trainer as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import torch

from hpctrain.data import from_numpy


class Counting(pl.LightningModule):
    """Counts the rows that it trains and validates on."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.rows: list[int] = []
        self.validated: list[int] = []

    def on_train_epoch_start(self) -> None:
        self.rows.append(0)

    def on_validation_epoch_start(self) -> None:
        self.validated.append(0)

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        self.rows[-1] += len(batch["y"])
        return (self.weight * batch["y"]).mean()

    def validation_step(self, batch: Any, index: int) -> None:
        self.validated[-1] += len(batch["y"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.filterwarnings("ignore")
def test_every_epoch_of_a_trainer_has_its_rows(tmp_path: Path):
    shard = from_numpy({"y": np.arange(10, dtype="f4")}).shard(rank=0, world_size=1)
    held_out = from_numpy({"y": np.arange(4, dtype="f4")}).shard(rank=0, world_size=1)
    model = Counting()
    trainer = pl.Trainer(
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    trainer.fit(
        model,
        shard.iter_torch_batches(batch_size=4),
        held_out.iter_torch_batches(batch_size=4),
    )
    assert model.rows == [10, 10, 10]
    # Once more before training: Lightning tries it.
    assert model.validated == [4, 4, 4, 4]
    assert trainer.num_training_batches == 3
