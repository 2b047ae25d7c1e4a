"""A model for the page on JAX."""

import os
import subprocess
import sys

import h5py
import numpy as np

sys.path.insert(0, "EXAMPLES")
os.environ["PYTHONPATH"] += ":" + "EXAMPLES"


def make_params(split):
    import jax

    def layer(inputs, outputs):
        weights = np.ones((inputs, outputs), np.float32)
        return {"weights": weights, "bias": np.zeros(outputs, np.float32)}

    return jax.device_put({"hidden": layer(64, 8), "output": layer(8, 10)}, split)


def my_batches(epoch):
    yield np.ones((4, 64), np.float32)


def step(params, batch):
    return params, batch.mean()


# block: jax-train

with h5py.File("scratch/images.h5", "w") as file:
    file["images"] = np.ones((8, 64), np.float32)

# block: jax-predict

assert scores.count() == 8

# block: jax-predict-command

assert os.path.exists("scratch/scores.h5")
