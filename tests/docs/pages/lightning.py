"""A module and data for the page on Lightning; then its blocks, in order."""

import lightning.pytorch as pl
import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset


class Net(pl.LightningModule):
    def __init__(self, lr=0.1):
        super().__init__()
        self.save_hyperparameters()
        self.layer = torch.nn.Linear(4, 2)

    def forward(self, pixels):
        return self.layer(pixels)

    def training_step(self, batch):
        loss = self(batch[0]).square().mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch):
        self.log("val_loss", self(batch[0]).square().mean(), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr)


class Digits(pl.LightningDataModule):
    def train_dataloader(self):
        return DataLoader(TensorDataset(torch.ones(8, 4)), batch_size=2)

    val_dataloader = train_dataloader


# block: lightning-train

# block: lightning-trainer

pixels = np.ones((3, 4), np.float32)

# block: lightning-predict

assert scores.shape == (3, 2)
