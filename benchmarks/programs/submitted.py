"""A run that says when its first line is reached: ``python submitted.py RANKS FOLDER``."""

import sys
import time

from hpctrain import RunConfig, ScalingConfig, SlurmConfig
from hpctrain.torch import TorchTrainer


def train(config):
    import os
    import time

    import hpctrain

    if hpctrain.get_context().get_world_rank() == 0:
        with open(f"{config['folder']}/first.new", "w") as file:
            file.write(f"{time.time():.6f}")
        os.replace(f"{config['folder']}/first.new", f"{config['folder']}/first")


if __name__ == "__main__":
    folder = sys.argv[2]
    trainer = TorchTrainer(
        train,
        train_loop_config={"folder": folder},
        scaling_config=ScalingConfig(
            num_workers=int(sys.argv[1]), slurm=SlurmConfig(tasks_per_node=1)
        ),
        run_config=RunConfig(name="run", storage_path=folder, verbose=0),
    )
    with open(f"{folder}/fit", "w") as file:
        file.write(f"{time.time():.6f}")
    trainer.fit()
