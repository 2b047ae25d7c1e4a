"""A run that does nothing, of a script that imports torch, as most do."""

import sys

import torch

from hpctrain import RunConfig, ScalingConfig
from hpctrain.torch import TorchTrainer


def train():
    torch.get_num_threads()


if __name__ == "__main__":
    trainer = TorchTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=int(sys.argv[1])),
        run_config=RunConfig(name="run", storage_path=".", verbose=int(sys.argv[2])),
    )
    trainer.fit()
