"""Files for the second example of the README, which is what runs."""

import h5py
import numpy as np

measured = np.random.default_rng(1).normal(size=64)
for name in ("train.h5", "all.h5"):
    with h5py.File(name, "w") as file:
        file["measured"] = measured
        if name == "train.h5":
            file["benign"] = (measured > 0).astype(int)

# block: readme-python-2

with h5py.File("scores.h5") as file:
    (scores,) = file.values()
    assert scores.shape == (64,)
