"""What a file gives, in the types that its dataset said."""

from __future__ import annotations

import numpy as np

from hpctrain.data.formats import Batch
from hpctrain.data.schema import Schema
from hpctrain.errors import ConfigError


def conform(batch: Batch, schema: Schema, *, where: str, advice: str) -> Batch:
    """Return the columns of a batch in the types of a schema.

    Not collective.

    Parameters
    ----------
    where
        File, and rows, for the message.
    advice
        What to do if a value does not fit.

    Raises
    ------
    ConfigError
        If a number is missing where the schema has integers, or a row has another shape.
    """
    columns = {}
    for name, column in schema.items():
        array = batch[name]
        if array.shape[1:] != column.shape:
            raise ConfigError(
                f"{where}: a row of column {name!r} has shape {array.shape[1:]}, but "
                f"{column.shape} in the rest of the dataset. {advice}"
            )
        if column.dtype.kind in "iub" and array.dtype.kind not in "iub":
            raise ConfigError(
                f"{where}: column {name!r} of type {column.dtype} has missing or other values. "
                f"{advice}"
            )
        columns[name] = array.astype(column.dtype, copy=False)
    return columns


def empty(schema: Schema) -> Batch:
    """Return a batch without rows. Not collective."""
    return {name: np.empty((0, *c.shape), c.dtype) for name, c in schema.items()}
