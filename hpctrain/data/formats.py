"""Conversion of batches between NumPy, pandas and Arrow format.

Internally, a batch is a dict of arrays: see `hpctrain.data.batch`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias

import numpy as np

from hpctrain.data import types
from hpctrain.data.arrow_batches import column_of_arrow, from_arrow, to_arrow
from hpctrain.data.batch import Batch, check_lengths
from hpctrain.data.categories import plain
from hpctrain.data.pandas_batches import column_of_series, from_pandas, to_pandas
from hpctrain.data.schema import check_unique
from hpctrain.errors import ConfigError

BatchFormat: TypeAlias = Literal["numpy", "pandas", "pyarrow"]

FORMATS = ("numpy", "pandas", "pyarrow")


def check_format(batch_format: str | None) -> BatchFormat:
    """Return a valid batch format; Ray's "default" is "numpy". Not collective.

    Raises
    ------
    ConfigError
        If it is not "numpy", "pandas" or "pyarrow".
    """
    form = "numpy" if batch_format == "default" else batch_format
    if form not in FORMATS:
        raise ConfigError(
            f"batch_format={batch_format!r} is unknown. Use {', '.join(map(repr, FORMATS))}."
        )
    return form  # type: ignore[return-value]


def rows_of(batch: Batch) -> Iterator[dict[str, Any]]:
    """Return the rows of a batch, each a dict. Not collective."""
    columns = [types.values_of(array) for array in batch.values()]
    return (dict(zip(batch, values, strict=True)) for values in zip(*columns, strict=True))


def to_format(batch: Batch, batch_format: BatchFormat) -> Any:
    """Return a batch as dict of arrays, data frame or Arrow table. Not collective."""
    form = check_format(batch_format)
    if form == "pandas":
        return to_pandas(batch)
    return to_arrow(batch) if form == "pyarrow" else plain(batch)


def from_any(batch: Any, *, keep_categories: bool = False) -> Batch:
    """Return a batch of any format as a dict of arrays.

    Not collective.

    Parameters
    ----------
    batch
        A dict of arrays or lists, a data frame, an Arrow table or record batch, or one array, which
        becomes the column ``data``.
    keep_categories
        As in `from_pandas`.

    Raises
    ------
    ConfigError
        If it is none of these, or its columns have different numbers of rows.
    """
    if isinstance(batch, Mapping):
        arrays = {str(name): _named(name, values) for name, values in batch.items()}
        if len(arrays) < len(batch):
            check_unique(map(str, batch))
    elif hasattr(batch, "iloc"):
        arrays = from_pandas(batch, keep_categories=keep_categories)
    elif hasattr(batch, "schema") and hasattr(batch, "column"):
        arrays = from_arrow(batch, keep_categories=keep_categories)
    elif isinstance(batch, np.ndarray):
        arrays = {"data": as_column(batch)}
    else:
        raise ConfigError(
            f"a batch of type {type(batch).__name__} is not supported. Give a dict of arrays, a "
            f"pandas data frame or an Arrow table."
        )
    check_lengths(arrays)
    return arrays


def _named(name: Any, values: Any) -> np.ndarray:
    if type(values) is np.ndarray and values.dtype in types.USUAL and values.ndim:
        return values
    try:
        return as_column(values)
    except ConfigError as error:
        raise ConfigError(f"column {str(name)!r}: {error}") from error


def as_column(values: Any) -> np.ndarray:
    """Return values as an array that has a row per element, of a type that batches have.

    Not collective. Texts become objects, and numbers native ones: see `hpctrain.data.types`.

    Raises
    ------
    ConfigError
        If it is a single value, or bytes that are not text.
    """
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    if isinstance(values, np.ndarray):
        array = types.as_in_batches(values)
    elif hasattr(values, "iloc"):
        array = column_of_series(values)
    elif hasattr(values, "null_count") and hasattr(values, "type"):
        array = column_of_arrow(values)
    elif hasattr(values, "__array__"):
        array = types.as_in_batches(np.asarray(values))
    elif np.iterable(values):
        array = types.array_of(list(values))
    else:
        array = np.asarray(values)
    if array.ndim == 0:
        raise ConfigError(
            f"a column needs a value per row, not the single value {values!r}. Give an array or a "
            f"list."
        )
    return array
