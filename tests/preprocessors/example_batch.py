"""A batch with a column of each kind."""

from __future__ import annotations

import numpy as np

BATCH = {
    "x": np.array([1.0, 2.5, 7.25, np.nan]),
    "full": np.array([1.0, 2.5, 7.25, 3.0]),
    "v": np.arange(12.0).reshape(4, 3) / 7,
    "c": np.array(["a", "ü", "$", "a"], dtype=object),
    "n": np.array([3, 1, 3, 2]),
    "t": np.array(["the cat", "a dog", "", "the end"], dtype=object),
}
