"""Write rows of 28 numbers to a Parquet file: PATH THOUSANDS_OF_ROWS."""

import sys

import numpy as np
import pyarrow
from pyarrow import parquet
from scoring_models import FEATURES

path, rows = sys.argv[1], int(sys.argv[2]) * 1000
x = np.random.default_rng(1).normal(size=(len(FEATURES), rows)).astype("f4")
parquet.write_table(
    pyarrow.table(dict(zip(FEATURES, x, strict=True))), path, row_group_size=100_000
)
