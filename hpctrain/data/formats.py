"""Batches in NumPy's, pandas' and Arrow's form, and from one to another.

Inside, a batch is a dict of arrays that have a row per element: ``{"x": [rows, 28], "y": [rows]}``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

from hpctrain.data import types
from hpctrain.data.categories import Categories, categories_of, plain, union, with_categories
from hpctrain.data.optional import require
from hpctrain.data.schema import check_unique
from hpctrain.errors import ConfigError

Batch: TypeAlias = "dict[str, np.ndarray]"
BatchFormat: TypeAlias = Literal["numpy", "pandas", "pyarrow"]

FORMATS = ("numpy", "pandas", "pyarrow")


def num_rows(batch: Mapping[str, np.ndarray]) -> int:
    """Return the number of rows of a batch. Not collective."""
    return len(next(iter(batch.values()))) if batch else 0


def check_format(batch_format: str | None) -> BatchFormat:
    """Return a form, of those that exist; Ray's "default" is "numpy". Not collective.

    Raises
    ------
    ConfigError
        If it is none of "numpy", "pandas", "pyarrow".
    """
    form = "numpy" if batch_format == "default" else batch_format
    if form not in FORMATS:
        raise ConfigError(
            f"batch_format={batch_format!r}. One of {', '.join(map(repr, FORMATS))} is needed."
        )
    return form  # type: ignore[return-value]


def rows_of(batch: Batch) -> Iterator[dict[str, Any]]:
    """Return the rows of a batch, each a dict. Not collective."""
    columns = [types.values_of(array) for array in batch.values()]
    return (dict(zip(batch, values, strict=True)) for values in zip(*columns, strict=True))


def check_batch_size(batch_size: Any) -> None:
    """Refuse what is no number of rows. Not collective.

    Raises
    ------
    ConfigError
        If it is not an integer of one or more.
    """
    if not isinstance(batch_size, int) or batch_size < 1:
        raise ConfigError(f"batch_size={batch_size!r}: rows, one or more.")


def to_format(batch: Batch, batch_format: BatchFormat) -> Any:
    """Return a batch as dict of arrays, data frame or Arrow table. Not collective."""
    form = check_format(batch_format)
    if form == "pandas":
        return to_pandas(batch)
    return to_arrow(batch) if form == "pyarrow" else plain(batch)


def from_any(batch: Any, *, keep_categories: bool = False) -> Batch:
    """Return a batch as dict of arrays, whatever form it has.

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
        If it is none of these, or its columns have unlike numbers of rows.
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
            f"a batch of type {type(batch).__name__} is not understood. Give a dict of arrays, a "
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


def check_lengths(batch: Mapping[str, np.ndarray]) -> None:
    """Refuse columns of unlike length. Not collective.

    Raises
    ------
    ConfigError
        The message has the length of each.
    """
    if len({len(array) for array in batch.values()}) > 1:
        lengths = {name: len(array) for name, array in batch.items()}
        raise ConfigError(
            f"the columns have unlike numbers of rows: "
            f"{', '.join(f'{name!r} {length}' for name, length in lengths.items())}."
        )


def flat_rows(values: np.ndarray) -> np.ndarray:
    """Return a column with each row as a vector. Not collective. No copy if that is possible."""
    return values.reshape(len(values), int(np.prod(values.shape[1:], dtype=np.int64)))


def as_column(values: Any) -> np.ndarray:
    """Return values as an array that has a row per element, of a type that batches have.

    Not collective. Texts become objects, and numbers native ones: see `hpctrain.data.types`.

    Raises
    ------
    ConfigError
        If it is a single value, or bytes that are no text.
    """
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    if isinstance(values, np.ndarray):
        array = types.as_in_batches(values)
    elif hasattr(values, "iloc"):
        array = _from_series(values)
    elif hasattr(values, "null_count") and hasattr(values, "type"):
        array = _from_arrow(values)
    elif hasattr(values, "__array__"):
        array = types.as_in_batches(np.asarray(values))
    elif np.iterable(values):
        array = types.array_of(list(values))
    else:
        array = np.asarray(values)
    if array.ndim == 0:
        raise ConfigError(f"a column needs a value per row, not the single value {values!r}.")
    return array


def concatenate(batches: Sequence[Batch]) -> Batch:
    """Return batches one after another, as one.

    Not collective.

    Raises
    ------
    ConfigError
        If they have other columns, or types that cannot be joined without another value.
    """
    # A function that was called with no row has made no columns.
    batches = [batch for batch in batches if batch] or batches[:1]
    if len(batches) == 1:
        return batches[0]
    first = batches[0]
    if unlike := [batch for batch in batches if batch.keys() != first.keys()]:
        raise ConfigError(
            f"batches have unlike columns: {list(first)} and {list(unlike[0])}. Return the same "
            f"ones for every batch."
        )
    return {name: types.join([b[name] for b in batches], name=name) for name in first}


def slice_batch(batch: Batch, start: int, stop: int) -> Batch:
    """Return some rows of a batch, without copying them. Not collective."""
    return {name: array[start:stop] for name, array in batch.items()}


def to_pandas(batch: Batch) -> Any:
    """Return a data frame; a column of arrays has one array in each cell. Not collective."""
    pandas = require("pandas", to="for batches in the form of pandas")
    columns = {n: array if array.ndim == 1 else list(array) for n, array in batch.items()}
    for name, array in batch.items():
        if (found := categories_of(array.dtype)) is not None:
            values = pandas.Index(found.values)
            columns[name] = pandas.Categorical.from_codes(
                _codes(name, array, found), categories=values, ordered=found.ordered
            )
    return pandas.DataFrame(columns, index=pandas.RangeIndex(num_rows(batch)))


def from_pandas(frame: Any, *, keep_categories: bool = False) -> Batch:
    """Return the columns of a data frame, without its index.

    Not collective.

    Parameters
    ----------
    keep_categories
        Whether the type of a column of pandas' category type has its categories.
    """
    check_unique(map(str, frame.columns))
    found = {str(name): frame.iloc[:, at] for at, name in enumerate(frame.columns)}
    columns = {name: _from_series(series) for name, series in found.items()}
    for name, series in found.items() if keep_categories else ():
        if hasattr(series.dtype, "categories"):
            values = as_column(series.cat.categories.to_series())
            categories = Categories(values=values, ordered=bool(series.cat.ordered))
            array = columns[name]
            columns[name] = array.view(with_categories(array.dtype, categories))
    return columns


def _codes(name: str, array: np.ndarray, categories: Categories) -> np.ndarray:
    try:
        return categories.codes(array)
    except ConfigError as error:
        raise ConfigError(f"column {name!r}: {error}") from error


def _from_series(series: Any) -> np.ndarray:
    if not isinstance(series.dtype, np.dtype):
        return _from_extension(series)
    array: np.ndarray = types.as_in_batches(series.to_numpy())
    if array.dtype != object or len(array) == 0 or not _holds_arrays(array[0]):
        return array
    try:
        return _stack(array.tolist())
    except (ValueError, ConfigError):
        return array


def _stack(cells: Sequence[Any]) -> np.ndarray:
    """Return cells of arrays or lists as one array, each with the values that it has."""
    if any(not isinstance(cell, np.ndarray) or cell.dtype != cells[0].dtype for cell in cells):
        rows = [types.array_of(cell)[np.newaxis] for cell in cells]
        return types.join(rows, name="of cells")
    return types.as_in_batches(np.stack(cells))


def _from_extension(series: Any) -> np.ndarray:
    """Return a column of one of pandas' own types, some of which can miss integers and bools."""
    if hasattr(series.dtype, "pyarrow_dtype"):
        return _from_arrow(series.array.__arrow_array__())
    if hasattr(series.dtype, "categories"):
        return _of_codes(series.cat.codes.to_numpy(), as_column(series.cat.categories.to_series()))
    numbers = getattr(series.dtype, "numpy_dtype", np.dtype(object))
    array: np.ndarray
    if getattr(series.dtype, "tz", None) is not None:
        # Arrow has the same: instants, as they are in UTC.
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
    """Return categories by their places; those at -1 are missing."""
    if codes.size and codes.min() >= 0:
        found: np.ndarray = categories[codes]
    elif categories.dtype.kind in "fMm":
        nothing = np.full(1, np.nan if categories.dtype.kind == "f" else "NaT", categories.dtype)
        found = np.concatenate([categories, nothing])[codes]
    else:
        found = np.concatenate([categories.astype(object), np.array([None])])[codes]
        # Whether floats have them is asked of all categories, not to depend on the rows.
        if categories.dtype.kind in "iu" and _are_floats(categories):
            found = types.with_missing(found)
    return found


def _are_floats(integers: np.ndarray) -> bool:
    return types.cast_exactly(integers, np.dtype(np.float64)) is not None


def _holds_arrays(cell: Any) -> bool:
    return isinstance(cell, (np.ndarray, list, tuple))


def to_arrow(batch: Batch) -> Any:
    """Return an Arrow table; a column of arrays becomes one of tensors, or of lists of fixed size.

    Not collective. Arrow's tensors are of numbers; others are in lists.

    Raises
    ------
    ConfigError
        If Arrow has no type for the values of a column.
    """
    pyarrow = require("pyarrow", to="for batches in the form of Arrow")
    columns = {}
    for name, array in batch.items():
        native = array.astype(array.dtype.newbyteorder("="), copy=False)
        try:
            if (found := categories_of(array.dtype)) is not None:
                codes = _codes(name, array, found)
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
                f"column {name!r} of type {array.dtype} cannot be a column of Arrow's: {error}. "
                f"Give all its values one type that Arrow has; complex numbers can be two columns."
            ) from error
    return pyarrow.table(columns)


def _tensor_array(pyarrow: Any, array: np.ndarray) -> Any:
    values = types.to_arrow_array(array.reshape(-1))
    if array.dtype.kind not in "iuf" or 0 in array.shape[1:]:
        # Arrow's tensors are of numbers; these are lists of lists.
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

    Not collective. A fixed-size list or tensor column becomes an array of more dimensions; numbers
    that are missing become NaN; other values that are missing, None.

    Parameters
    ----------
    objects
        Columns that are objects in other batches, so integers are here too.
    keep_categories
        Whether the type of a column of Arrow's dictionaries has their values as its categories.
    """
    check_unique(table.schema.names)
    found = {name: table.column(name) for name in table.schema.names}
    columns = {
        name: _integers_as_objects(column) if name in objects else _from_arrow(column)
        for name, column in found.items()
    }
    for name, column in found.items() if keep_categories else ():
        array = columns[name]
        columns[name] = array.view(with_categories(array.dtype, categories_of_arrow(column)))
    return columns


def categories_of_arrow(column: Any) -> Categories | None:
    """Return the categories of a column of Arrow's dictionaries, else None. Not collective."""
    pyarrow = require("pyarrow", to="for batches in the form of Arrow")
    if not pyarrow.types.is_dictionary(column.type):
        return None
    chunks = column.chunks if isinstance(column, pyarrow.ChunkedArray) else [column]
    dictionaries = [chunk.dictionary for chunk in chunks]
    same = all(dictionary.equals(dictionaries[0]) for dictionary in dictionaries)
    found = [
        Categories(values=_from_arrow(values.drop_null()), ordered=column.type.ordered)
        for values in (dictionaries[:1] if same else dictionaries)
    ]
    return union(found) if found else None


def _integers_as_objects(column: Any) -> np.ndarray:
    """Return integers as Python's own, None where one is missing; others as usual."""
    pyarrow = require("pyarrow", to="for batches in the form of Arrow")
    if pyarrow.types.is_integer(column.type):
        return np.array(column.to_pylist(), dtype=object)
    return _from_arrow(column)


def _from_arrow(column: Any) -> np.ndarray:
    pyarrow = require("pyarrow", to="for batches in the form of Arrow")
    if isinstance(column, pyarrow.ChunkedArray):
        # An Arrow array of one chunk gives its memory away without a copy.
        column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        if isinstance(column, pyarrow.ChunkedArray):
            parts = [_from_arrow(chunk) for chunk in column.chunks]
            return np.concatenate(parts) if parts else _empty(pyarrow, column.type)
    kind = column.type
    if isinstance(kind, pyarrow.FixedShapeTensorType):
        if len(column) == 0:
            return _empty(pyarrow, kind)
        array: np.ndarray = column.to_numpy_ndarray()
        return array
    if isinstance(kind, pyarrow.BaseExtensionType):
        return _from_arrow(column.storage)
    if pyarrow.types.is_fixed_size_list(kind) and column.null_count == 0:
        inner = _from_arrow(column.flatten())
        return inner.reshape(len(column), kind.list_size, *inner.shape[1:])
    if pyarrow.types.is_dictionary(kind):
        values, column = column.dictionary, column.dictionary_decode()
        kind = column.type
        is_integer = pyarrow.types.is_integer(kind)
        if column.null_count and is_integer and not _are_floats(np.asarray(values.drop_null())):
            return np.array(column.to_pylist(), dtype=object)
    is_large = column.null_count and pyarrow.types.is_integer(kind) and kind.bit_width == 64
    if is_large and not _are_floats(np.asarray(column.drop_null())):
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
    pyarrow = require("pyarrow", to="for batches in the form of Arrow")
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
