"""The loop that saves when the run is to stop."""

import os

import hpctrain
from hpctrain import Checkpoint, DataParallelTrainer, RunConfig, ScalingConfig


os.mkdir("model")
open("model/weights", "w").close()


def train():
    first, loss = -100_000, 1.0
    checkpoint = Checkpoint.from_directory("model")

    # block: configuration-stop


result = DataParallelTrainer(
    train,
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(name="stop", storage_path="runs", stop={"loss": 0.5}),
).fit()
assert 0 < len(result.metrics_history) < 100_000
assert result.checkpoint
