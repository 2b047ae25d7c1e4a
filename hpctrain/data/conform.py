"""The columns of a file, in the types of its dataset."""

from __future__ import annotations

import numpy as np

from hpctrain.data.batch import Batch
from hpctrain.data.schema import Column, Schema
from hpctrain.data.types import cast_exactly
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
        If a value is missing or would become another one, or a row has another shape.
    """
    columns = {}
    for name, column in schema.items():
        array = batch[name]
        if array.shape[1:] != column.shape:
            raise ConfigError(
                f"{where}: a row of column {name!r} has shape {array.shape[1:]}, but "
                f"{column.shape} in the rest of the dataset. {advice}"
            )
        cast = cast_exactly(array, column.dtype)
        if cast is None:
            raise ConfigError(
                f"{where}: column {name!r} of type {column.dtype} has missing values, or values of "
                f"type {array.dtype} that do not fit. {advice}"
            )
        columns[name] = cast
    return columns


def check_unchanged(
    path: str, name: str, *, rows: int, column: Column, found: tuple[int, Column]
) -> None:
    """Check that a file has the rows and the type that it had when its dataset was made.

    Not collective.

    Parameters
    ----------
    rows, column
        Number of rows, and the column, of the dataset.
    found
        The same of the file.

    Raises
    ------
    ConfigError
        If they differ.
    """
    if found != (rows, column):
        raise ConfigError(
            f"{path} has changed since the dataset was made: {name!r} has {found[0]} rows of "
            f"{found[1]}, and had {rows} of {column}. Make the dataset again."
        )


def empty(schema: Schema) -> Batch:
    """Return a batch without rows. Not collective."""
    return {name: np.empty((0, *c.shape), c.dtype) for name, c in schema.items()}
