"""Batches as Arrow tables in which what is missing is missing."""

from __future__ import annotations

from typing import Any

from hpctrain.data.arrow_batches import to_arrow
from hpctrain.data.batch import Batch
from hpctrain.data.optional import require


def to_arrow_with_missing(batch: Batch) -> Any:
    """Return an Arrow table whose NaN are nulls: in a batch a number that is missing is NaN.

    Not collective.
    """
    pyarrow = require("pyarrow", to="to sort, group and aggregate")
    table = to_arrow(batch)
    for at, (name, array) in enumerate(batch.items()):
        if array.ndim == 1 and array.dtype.kind == "f":
            table = table.set_column(at, name, pyarrow.array(array, from_pandas=True))
    return table
