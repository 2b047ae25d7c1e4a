"""Files for the page on data; both of its training functions run."""

import json
import os

import h5py
import numpy as np

os.makedirs("scratch/events")
with h5py.File("scratch/events/1.h5", "w") as file:
    file["x"] = np.random.default_rng(1).normal(size=(4000, 3)).astype(np.float32)
    file["label"] = np.arange(4000) % 2

# block: data-train


# block: data-position


result = TorchTrainer(
    train, datasets={"train": training}, scaling_config=ScalingConfig(num_workers=2)
).fit()
assert str(result.state) == "finished"
