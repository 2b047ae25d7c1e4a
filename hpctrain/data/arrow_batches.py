"""Batches as Arrow's tables, and Arrow's arrays as columns."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from hpctrain.data import types
from hpctrain.data.batch import Batch
from hpctrain.data.categories import Categories, categories_of, codes_of, union, with_categories
from hpctrain.data.optional import require
from hpctrain.data.schema import check_unique
from hpctrain.errors import ConfigError


def to_arrow(batch: Batch) -> Any:
    """Return an Arrow table; a column of arrays becomes one of tensors, or of lists of fixed size.

    Not collective. Arrow's tensors hold numbers only; other arrays become lists.

    Raises
    ------
    ConfigError
        If Arrow has no type for the values of a column.
    """
    pyarrow = require("pyarrow", to="for batches in Arrow format")
    columns = {}
    for name, array in batch.items():
        native = array.astype(array.dtype.newbyteorder("="), copy=False)
        try:
            if (found := categories_of(array.dtype)) is not None:
                codes = codes_of(name, array, found)
                columns[name] = pyarrow.DictionaryArray.from_arrays(
                    pyarrow.array(codes, mask=codes < 0),
                    pyarrow.array(found.values),
                    ordered=found.ordered,
                )
            elif array.ndim == 1:
                columns[name] = types.to_arrow_array(native)
                types.check_not_cast(name, array, columns[name].type)
            else:
                columns[name] = _tensor_array(pyarrow, np.ascontiguousarray(native))
        except pyarrow.ArrowException as error:
            raise ConfigError(
                f"column {name!r} of type {array.dtype} cannot become an Arrow column: {error}. "
                f"Give all its values one type that Arrow supports; store complex numbers as two "
                f"columns."
            ) from error
    return pyarrow.table(columns)


def _tensor_array(pyarrow: Any, array: np.ndarray) -> Any:
    values = types.to_arrow_array(array.reshape(-1))
    if array.dtype.kind not in "iuf" or 0 in array.shape[1:]:
        # Arrow's tensors hold numbers only; these become lists of lists.
        for axis in range(array.ndim - 1, 0, -1):
            kind = pyarrow.list_(values.type, array.shape[axis])
            count = int(np.prod(array.shape[:axis]))
            values = pyarrow.Array.from_buffers(kind, count, [None], children=[values])
        return values
    kind = pyarrow.fixed_shape_tensor(values.type, array.shape[1:])
    size = int(np.prod(array.shape[1:]))
    storage = pyarrow.FixedSizeListArray.from_arrays(values, size)
    return pyarrow.ExtensionArray.from_storage(kind, storage)


def from_arrow(
    table: Any, *, objects: Collection[str] = (), keep_categories: bool = False
) -> Batch:
    """Return the columns of an Arrow table or record batch.

    Not collective. A fixed-size list or tensor column becomes an array of more dimensions. Missing
    numbers become NaN, other missing values None.

    Parameters
    ----------
    objects
        Columns that are objects in other batches: their integers are objects here too.
    keep_categories
        Whether a dictionary column keeps the values of its dictionary as categories.
    """
    check_unique(table.schema.names)
    found = {name: table.column(name) for name in table.schema.names}
    columns = {
        name: _integers_as_objects(column) if name in objects else column_of_arrow(column)
        for name, column in found.items()
    }
    for name, column in found.items() if keep_categories else ():
        array = columns[name]
        columns[name] = array.view(with_categories(array.dtype, categories_of_arrow(column)))
    return columns


def categories_of_arrow(column: Any) -> Categories | None:
    """Return the categories of an Arrow dictionary column, or None. Not collective."""
    pyarrow = require("pyarrow", to="for batches in Arrow format")
    if not pyarrow.types.is_dictionary(column.type):
        return None
    chunks = column.chunks if isinstance(column, pyarrow.ChunkedArray) else [column]
    dictionaries = [chunk.dictionary for chunk in chunks]
    same = all(dictionary.equals(dictionaries[0]) for dictionary in dictionaries)
    found = [
        Categories(values=column_of_arrow(values.drop_null()), ordered=column.type.ordered)
        for values in (dictionaries[:1] if same else dictionaries)
    ]
    return union(found) if found else None


def _integers_as_objects(column: Any) -> np.ndarray:
    """Return integers as Python's ``int``, None where one is missing; other types as usual."""
    pyarrow = require("pyarrow", to="for batches in Arrow format")
    if pyarrow.types.is_integer(column.type):
        return np.array(column.to_pylist(), dtype=object)
    return column_of_arrow(column)


def column_of_arrow(column: Any) -> np.ndarray:
    """Return an Arrow array, of one chunk or several, as a column. Not collective."""
    pyarrow = require("pyarrow", to="for batches in Arrow format")
    if isinstance(column, pyarrow.ChunkedArray):
        # An Arrow array of one chunk becomes a NumPy array without a copy.
        column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        if isinstance(column, pyarrow.ChunkedArray):
            parts = [column_of_arrow(chunk) for chunk in column.chunks]
            return np.concatenate(parts) if parts else _empty(pyarrow, column.type)
    kind = column.type
    if isinstance(kind, pyarrow.FixedShapeTensorType):
        if len(column) == 0:
            return _empty(pyarrow, kind)
        array: np.ndarray = column.to_numpy_ndarray()
        return array
    if isinstance(kind, pyarrow.BaseExtensionType):
        return column_of_arrow(column.storage)
    if pyarrow.types.is_fixed_size_list(kind) and column.null_count == 0:
        inner = column_of_arrow(column.flatten())
        return inner.reshape(len(column), kind.list_size, *inner.shape[1:])
    if pyarrow.types.is_dictionary(kind):
        values, column = column.dictionary, column.dictionary_decode()
        kind = column.type
        is_integer = pyarrow.types.is_integer(kind)
        if (
            column.null_count
            and is_integer
            and not types.are_floats(np.asarray(values.drop_null()))
        ):
            return np.array(column.to_pylist(), dtype=object)
    is_large = column.null_count and pyarrow.types.is_integer(kind) and kind.bit_width == 64
    if is_large and not types.are_floats(np.asarray(column.drop_null())):
        return np.array(column.to_pylist(), dtype=object)
    array = column.to_numpy(zero_copy_only=False)
    return array


def _empty(pyarrow: Any, kind: Any) -> np.ndarray:
    dtype, shape = column_type(kind)
    return np.empty((0, *shape), dtype)


def column_type(kind: Any) -> tuple[np.dtype, tuple[int, ...]]:
    """Return NumPy's type, and the shape of a row, of an Arrow type without missing values.

    Not collective.
    """
    pyarrow = require("pyarrow", to="for batches in Arrow format")
    if isinstance(kind, pyarrow.FixedShapeTensorType):
        return column_type(kind.value_type)[0], tuple(kind.shape)
    if isinstance(kind, pyarrow.BaseExtensionType):
        return column_type(kind.storage_type)
    if pyarrow.types.is_fixed_size_list(kind):
        dtype, shape = column_type(kind.value_type)
        return dtype, (kind.list_size, *shape)
    if pyarrow.types.is_dictionary(kind):
        return column_type(kind.value_type)
    empty: np.ndarray = pyarrow.array([], kind).to_numpy(zero_copy_only=False)
    return empty.dtype, ()
