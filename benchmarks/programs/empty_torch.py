"""A run that does nothing: ``python empty_torch.py RANKS VERBOSE``."""

import sys

from hpctrain import RunConfig, ScalingConfig
from hpctrain.torch import TorchTrainer


def train():
    pass


if __name__ == "__main__":
    trainer = TorchTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=int(sys.argv[1])),
        run_config=RunConfig(name="run", storage_path=".", verbose=int(sys.argv[2])),
    )
    trainer.fit()
