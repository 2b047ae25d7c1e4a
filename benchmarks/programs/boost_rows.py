"""Write rows to boost on: PATH NUM_ROWS. Ten in a hundred more are held out."""

import sys

import h5py
import numpy as np

path, num_rows = sys.argv[1], int(sys.argv[2])
random = np.random.default_rng(7)
with h5py.File(path, "w") as file:
    for group, rows in (("train", num_rows), ("held_out", max(num_rows // 10, 1000))):
        x = random.standard_normal((rows, 28), dtype=np.float32)
        score = (
            x[:, 0] * x[:, 1] + np.sin(2 * x[:, 2]) + 0.5 * x[:, 3] ** 2 - 0.3 * x[:, 4:12].sum(1)
        )
        noise = random.standard_normal(rows, dtype=np.float32)
        file[f"{group}/x"] = x
        file[f"{group}/y"] = (score + noise > 0.5).astype(np.float32)
