"""Columns of a batch in any format, and batches of any kind of dataset."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from hpctrain.data import arrow_batches, categories, formats, pandas_batches
from hpctrain.data import batch as arrays
from hpctrain.data.batch import flat_rows as flat_rows
from hpctrain.data.formats import BatchFormat as BatchFormat
from hpctrain.errors import ConfigError

if TYPE_CHECKING:
    import pandas
    import pyarrow

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
NumpyBatch: TypeAlias = dict[str, Array]
Batch: TypeAlias = "NumpyBatch | pandas.DataFrame | pyarrow.Table"
Rows: TypeAlias = Callable[[], Iterator[NumpyBatch]]
"""Each call returns the batches of a shard from its beginning."""


@dataclass(frozen=True, kw_only=True)
class Categories:
    """A column of categories."""

    codes: Array
    """Index of each row's category; -1 for none."""
    categories: Sequence[Any]
    ordered: bool = False

    def to_numpy(self) -> Array:
        """Return the values themselves, None where there is no category. Not collective.

        The type of the array keeps the categories, as in a Dataset.
        """
        values = np.empty(len(self.categories) + 1, dtype=object)
        values[:-1] = list(self.categories)
        found: Array = values[self.codes]
        known = categories.Categories(
            values=formats.as_column(list(self.categories)), ordered=self.ordered
        )
        return found.view(categories.with_categories(found.dtype, known))

    def to_pandas(self) -> Any:
        """Return a pandas Categorical. Not collective."""
        import pandas

        return pandas.Categorical.from_codes(
            self.codes, categories=list(self.categories), ordered=self.ordered
        )

    def to_arrow(self) -> Any:
        """Return an Arrow array with a dictionary. Not collective."""
        import pyarrow

        codes = pyarrow.array(self.codes.astype(np.int32), mask=self.codes < 0)
        categories = pyarrow.array(list(self.categories))
        return pyarrow.DictionaryArray.from_arrays(codes, categories, ordered=self.ordered)


FIT_BATCH_ROWS = 65536
"""Most rows that are read at once for statistics."""
_FIT_BATCH_BYTES = 2**26


def format_of(batch: object) -> BatchFormat:
    """Return the format of a batch.

    Not collective.

    Raises
    ------
    ConfigError
        If it is not a batch.
    """
    if isinstance(batch, Mapping):
        return "numpy"
    if _is_a(batch, "pandas", "DataFrame"):
        return "pandas"
    if _is_a(batch, "pyarrow", "Table"):
        return "pyarrow"
    raise ConfigError(
        f"a batch of type {type(batch).__name__} has no columns with names. Give a dict of arrays, "
        f"a pandas DataFrame or an Arrow table: {{'x': array}} makes one column of an array."
    )


def names_of(batch: Any) -> list[str]:
    """Return the names of the columns. Not collective."""
    form = format_of(batch)
    if form == "numpy":
        return list(batch)
    return list(batch.columns if form == "pandas" else batch.column_names)


def column_of(batch: Any, name: str) -> Array:
    """Return a column as an array whose first axis are the rows.

    Not collective. Missing numbers are NaN, other missing values None or NaN.

    Raises
    ------
    ConfigError
        If there is no such column.
    """
    names = names_of(batch)
    if name not in names:
        raise ConfigError(
            f"column {name!r} is missing. The batch has {', '.join(map(repr, names)) or 'none'}: "
            f"name one of these, or make the column with an earlier preprocessor."
        )
    form = format_of(batch)
    if form == "numpy":
        return categories.plain({name: formats.as_column(batch[name])})[name]
    if form == "pandas":
        return _from_series(batch, name)
    return arrow_batches.from_arrow(batch.select([name]))[name]


def num_rows(batch: Any) -> int:
    """Return the number of rows. Not collective."""
    return arrays.num_rows(batch) if format_of(batch) == "numpy" else len(batch)


def replace_columns(batch: Any, columns: Mapping[str, Any], *, dropped: Sequence[str]) -> Any:
    """Return a batch of the same format with columns dropped, then columns set.

    Not collective. The batch that was given does not change.
    """
    form = format_of(batch)
    gone = [name for name in dropped if name not in columns]
    if form == "numpy":
        kept = {name: array for name, array in batch.items() if name not in gone}
        return {**kept, **{name: _to_numpy(column) for name, column in columns.items()}}
    if form == "pandas":
        # Assigned one by one, each column would create its own block in pandas, and then a warning.
        kept = batch.drop(columns=gone)
        made = {name: _to_series(name, column, kept.index) for name, column in columns.items()}
        # A keyword cannot be called as the object itself.
        own = {name: made.pop(name) for name in ("self",) if name in made}
        frame = kept.assign(**made)
        for name, series in own.items():
            frame[name] = series
        return frame
    table = batch.drop_columns(gone)
    for name, column in columns.items():
        array = _to_arrow(name, column)
        if name in table.column_names:
            table = table.set_column(table.column_names.index(name), name, array)
        else:
            table = table.append_column(name, array)
    return table


def to_format(batch: Any, form: BatchFormat) -> Any:
    """Return a batch in another format; itself if it has that format. Not collective."""
    if format_of(batch) == form:
        return batch
    return formats.to_format({name: column_of(batch, name) for name in names_of(batch)}, form)


def map_slices(
    function: Callable[[Any], Any], batch: Any, *, form: BatchFormat, batch_size: int | None
) -> Any:
    """Return the results of a function of slices of a batch, as one batch of the same format.

    Not collective. The function takes slices in the format `form`, of at most `batch_size` rows.
    """
    slices = slices_of(to_format(batch, form), batch_size)
    return to_format(concatenate([function(part) for part in slices]), format_of(batch))


def as_dataset(dataset: Any) -> Any:
    """Return what `rows_of` takes as a `hpctrain.data.Dataset`. Not collective."""
    if hasattr(dataset, "map_batches"):
        return dataset
    if isinstance(dataset, (list, tuple)) and dataset:
        dataset = concatenate(dataset)
    from hpctrain.data import read

    make: dict[BatchFormat, Callable[..., Any]] = {
        "numpy": read.from_numpy,
        "pandas": read.from_pandas,
        "pyarrow": read.from_arrow,
    }
    return make[format_of(dataset)](dataset)


def rows_of(dataset: Any, columns: Sequence[str] | None) -> Rows:
    """Return a function that yields the batches of a dataset: some columns, or all.

    Not collective.

    Parameters
    ----------
    dataset
        A Dataset or a DataIterator, a dict of arrays, a pandas DataFrame, an Arrow table, or a list
        of such batches.
    columns
        Columns to read; None is all.

    Raises
    ------
    ConfigError
        If it has no columns with names.
    """
    if hasattr(dataset, "iter_batches"):
        whole: Callable[[], Iterable[Any]] = _reader(dataset, columns)
    elif isinstance(dataset, (list, tuple)) and all(_is_batch(part) for part in dataset):
        whole = dataset.__iter__
    else:
        format_of(dataset)
        whole = [dataset].__iter__

    def batches() -> Iterator[NumpyBatch]:
        for batch in whole():
            wanted = names_of(batch) if columns is None else columns
            yield {name: column_of(batch, name) for name in wanted}

    return batches


def _reader(dataset: Any, columns: Sequence[str] | None) -> Callable[[], Iterable[Any]]:
    if columns is not None and hasattr(dataset, "select_columns"):
        dataset = dataset.select_columns(list(columns))

    row_bytes = max(dataset.schema().row_bytes, 1)
    batch_size = min(max(_FIT_BATCH_BYTES // row_bytes, 1), FIT_BATCH_ROWS)

    def read() -> Iterable[Any]:
        batches: Iterable[Any] = dataset.iter_batches(batch_size=batch_size, batch_format="numpy")
        return batches

    return read


def _is_batch(value: object) -> bool:
    try:
        format_of(value)
    except ConfigError:
        return False
    return True


def _is_a(value: object, module: str, name: str) -> bool:
    """Return whether a value is an instance of a class, without importing the module."""
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(value, getattr(loaded, name))


def _to_numpy(column: Any) -> Array:
    return column.to_numpy() if isinstance(column, Categories) else np.asarray(column)


def _from_series(frame: Any, name: str) -> Array:
    values: Array = formats.as_column(frame[name])
    return values


def _to_series(name: str, column: Any, index: Any) -> Any:
    import pandas

    if isinstance(column, Categories):
        return pandas.Series(column.to_pandas(), index=index)
    return pandas_batches.to_pandas({name: np.asarray(column)})[name].set_axis(index)


def _to_arrow(name: str, column: Any) -> Any:
    if isinstance(column, Categories):
        return column.to_arrow()
    return arrow_batches.to_arrow({name: np.asarray(column)}).column(name)


def slices_of(batch: Any, num_rows_each: int | None) -> list[Any]:
    """Return parts of a batch with at most this many rows; at least one part. Not collective."""
    total = num_rows(batch)
    if num_rows_each is None or total <= num_rows_each:
        return [batch]
    form = format_of(batch)
    parts = []
    for start in range(0, total, num_rows_each):
        stop = min(start + num_rows_each, total)
        if form == "numpy":
            parts.append(arrays.slice_batch(batch, start, stop))
        elif form == "pandas":
            parts.append(batch.iloc[start:stop])
        else:
            parts.append(batch.slice(start, stop - start))
    return parts


def concatenate(parts: Sequence[Any]) -> Any:
    """Return batches of one format as one. Not collective."""
    if len(parts) == 1:
        return parts[0]
    form = format_of(parts[0])
    if form == "numpy":
        return arrays.concatenate(parts)
    if form == "pandas":
        import pandas

        return pandas.concat(parts)
    import pyarrow

    return pyarrow.concat_tables(parts)
