"""Batches as Arrow tables with nulls for missing values."""

from __future__ import annotations

from typing import Any

from hpctrain.data.arrow_batches import to_arrow
from hpctrain.data.batch import Batch
from hpctrain.data.optional import require


def to_arrow_with_missing(batch: Batch) -> Any:
    """Return an Arrow table with nulls for NaN, which is a missing number in a batch.

    Not collective.
    """
    pyarrow = require("pyarrow", to="to sort, group and aggregate")
    table = to_arrow(batch)
    for at, (name, array) in enumerate(batch.items()):
        if array.ndim == 1 and array.dtype.kind == "f":
            table = table.set_column(at, name, pyarrow.array(array, from_pandas=True))
    return table
