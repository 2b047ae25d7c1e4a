"""Batches as pandas' data frames, and its series as columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hpctrain.data import types
from hpctrain.data.arrow_batches import column_of_arrow
from hpctrain.data.batch import Batch, num_rows
from hpctrain.data.categories import Categories, categories_of, codes_of, with_categories
from hpctrain.data.optional import require
from hpctrain.data.schema import check_unique
from hpctrain.errors import ConfigError


def to_pandas(batch: Batch) -> Any:
    """Return a data frame; a column of arrays has one array in each cell. Not collective."""
    pandas = require("pandas", to="for batches in pandas format")
    columns = {n: array if array.ndim == 1 else list(array) for n, array in batch.items()}
    for name, array in batch.items():
        if (found := categories_of(array.dtype)) is not None:
            values = pandas.Index(found.values)
            columns[name] = pandas.Categorical.from_codes(
                codes_of(name, array, found), categories=values, ordered=found.ordered
            )
    return pandas.DataFrame(columns, index=pandas.RangeIndex(num_rows(batch)))


def from_pandas(frame: Any, *, keep_categories: bool = False) -> Batch:
    """Return the columns of a data frame, without its index.

    Not collective.

    Parameters
    ----------
    keep_categories
        Whether a column of pandas' category type keeps its categories.
    """
    check_unique(map(str, frame.columns))
    found = {str(name): frame.iloc[:, at] for at, name in enumerate(frame.columns)}
    columns = {name: column_of_series(series) for name, series in found.items()}
    for name, series in found.items() if keep_categories else ():
        if hasattr(series.dtype, "categories"):
            values = column_of_series(series.cat.categories.to_series())
            categories = Categories(values=values, ordered=bool(series.cat.ordered))
            array = columns[name]
            columns[name] = array.view(with_categories(array.dtype, categories))
    return columns


def column_of_series(series: Any) -> np.ndarray:
    """Return a series, without its index, as a column. Not collective."""
    if not isinstance(series.dtype, np.dtype):
        return _from_extension(series)
    array: np.ndarray = types.as_in_batches(series.to_numpy())
    if array.dtype != object or len(array) == 0:
        return array
    # pandas' NA is neither equal to itself nor unlike itself.
    nothing = require("pandas", to="for batches in pandas format").NA
    if any(value is nothing for value in array):
        array = array.copy()
        array[[value is nothing for value in array]] = None
    if not _holds_arrays(array[0]):
        return array
    try:
        return _stack(array.tolist())
    except (ValueError, ConfigError):
        return array


def _stack(cells: Sequence[Any]) -> np.ndarray:
    """Return cells of arrays or lists as one array, without changing a value."""
    if any(not isinstance(cell, np.ndarray) or cell.dtype != cells[0].dtype for cell in cells):
        rows = [types.array_of(cell)[np.newaxis] for cell in cells]
        return types.join(rows, name="of cells")
    return types.as_in_batches(np.stack(cells))


def _from_extension(series: Any) -> np.ndarray:
    """Return a column of a pandas extension type; integers and bools may be missing in it."""
    if hasattr(series.dtype, "pyarrow_dtype"):
        return column_of_arrow(series.array.__arrow_array__())
    if hasattr(series.dtype, "categories"):
        return _of_codes(
            series.cat.codes.to_numpy(), column_of_series(series.cat.categories.to_series())
        )
    numbers = getattr(series.dtype, "numpy_dtype", np.dtype(object))
    array: np.ndarray
    if getattr(series.dtype, "tz", None) is not None:
        # The same as from Arrow: times in UTC.
        array = series.dt.tz_convert("UTC").dt.tz_localize(None).to_numpy()
    elif numbers.kind == "f":
        array = series.to_numpy(dtype=numbers, na_value=np.nan)
    elif numbers.kind in "biu" and not series.hasnans:
        array = series.to_numpy(dtype=numbers)
    else:
        array = series.to_numpy(dtype=object, na_value=None)
        array = types.with_missing(array) if numbers.kind in "iu" else array
    return array


def _of_codes(codes: np.ndarray, categories: np.ndarray) -> np.ndarray:
    """Return the values of category codes; code -1 is a missing value."""
    if codes.size and codes.min() >= 0:
        found: np.ndarray = categories[codes]
    elif categories.dtype.kind in "fMm":
        nothing = np.full(1, np.nan if categories.dtype.kind == "f" else "NaT", categories.dtype)
        found = np.concatenate([categories, nothing])[codes]
    else:
        found = np.concatenate([categories.astype(object), np.array([None])])[codes]
        # Whether floats can hold them must depend on all categories, not on the rows.
        if categories.dtype.kind in "iu" and types.are_floats(categories):
            found = types.with_missing(found)
    return found


def _holds_arrays(cell: Any) -> bool:
    return isinstance(cell, (np.ndarray, list, tuple))
