"""Writing datasets to files, by one process, batch by batch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from hpctrain.checks import check_choice, check_text, shown
from hpctrain.data import arguments
from hpctrain.data.arrow_batches import to_arrow
from hpctrain.data.batch import Batch, num_rows
from hpctrain.data.categories import plain
from hpctrain.data.conform import conform, empty
from hpctrain.data.hdf5 import as_in_hdf5, check_names, hdf5_type, is_text, open_file
from hpctrain.data.operations.consumed import Consumed
from hpctrain.data.optional import require
from hpctrain.data.schema import Column, Schema
from hpctrain.errors import ConfigError
from hpctrain.own_files import DIRECTORY_MODE, name_beside

ROW_GROUP_BYTES = 64 * 2**20

PART_BYTES = 256 * 2**20
"""Bytes of an ``.npz`` file, which is written in one call."""


def write_parquet(dataset: Consumed, path: str | PathLike[str], *, compression: str | None) -> Path:
    """Write one Parquet file. Not collective."""
    if compression is not None:
        check_text("compression", compression)
    parquet = require("pyarrow.parquet", to="to write Parquet files")
    schema = dataset.schema()
    if hollow := [name for name, column in schema.items() if 0 in column.shape]:
        raise ConfigError(
            f"rows of columns {', '.join(map(repr, hollow))} are arrays without elements, which "
            f"Parquet does not support. Leave them out with drop_columns()."
        )
    rows = max(1, ROW_GROUP_BYTES // max(schema.row_bytes, 1))
    with _beside(path, (".parquet", ".pq")) as beside, ExitStack() as stack:
        writer = None
        for table in _tables(dataset, schema, batch_size=rows, keep_categories=True):
            if writer is None:
                writer = stack.enter_context(
                    _parquet_writer(parquet, beside, table.schema, compression)
                )
            writer.write_table(table, row_group_size=rows)
    return _target(path)


def _parquet_writer(parquet: Any, path: Path, schema: Any, compression: str | None) -> Any:
    try:
        return parquet.ParquetWriter(path, schema, compression=compression)
    except OSError:
        raise
    # pyarrow.ArrowException, of which some are not ValueErrors.
    except Exception as error:
        raise ConfigError(
            f"compression={shown(compression)} is not one of Parquet's: {error}. Use 'zstd', "
            f"'snappy', 'gzip', 'brotli', 'lz4' or 'none'."
        ) from error


def write_csv(dataset: Consumed, path: str | PathLike[str]) -> Path:
    """Write one CSV file. Not collective."""
    csv = require("pyarrow.csv", to="to write CSV files")
    compute = require("pyarrow.compute", to="to write CSV files")
    schema = dataset.schema()
    if wide := [name for name, column in schema.items() if column.shape]:
        raise ConfigError(
            f"columns {', '.join(map(repr, wide))} have an array in each row, which CSV does not "
            f"support. Write Parquet or HDF5, or split them with map_batches()."
        )
    # A line of one missing value would be empty, and readers of CSV skip empty lines.
    quote_missing = [column.dtype.kind in "OMm" for column in schema.values()] == [True]
    with _beside(path, (".csv",)) as beside, ExitStack() as stack:
        writer = None
        for table in _tables(dataset, schema, batch_size=65536):
            if quote_missing:
                kind = table.schema.field(0).type
                try:
                    texts = compute.fill_null(table.column(0).cast("string"), "")
                except NotImplementedError as error:
                    raise ConfigError(
                        f"column {table.schema.names[0]!r} has values of type {kind}, which CSV "
                        f"does not support. Write Parquet, or split them with map_batches()."
                    ) from error
                table = table.set_column(0, table.schema.names[0], texts)
            writer = writer or stack.enter_context(csv.CSVWriter(beside, table.schema))
            writer.write_table(table)
    return _target(path)


def write_numpy(dataset: Consumed, path: str | PathLike[str]) -> Path:
    """Write a directory of ``.npz`` files that are not compressed. Not collective."""
    schema = dataset.schema()
    directory = _target(path)
    if directory.exists():
        raise ConfigError(f"{directory} exists. Delete it, or give another path.")
    if directory.suffix in (".npy", ".npz"):
        raise ConfigError(
            f"{directory}: write_numpy() writes a directory of .npz files. Give a path without "
            f"{directory.suffix}."
        )
    if hidden := [name for name in schema if name == "file" or "/" in name or "\0" in name]:
        raise ConfigError(
            f"column {', '.join(map(repr, hidden))} cannot be written to .npz: numpy.savez() does "
            f"not accept the name. Rename it, or write Parquet."
        )
    rows = max(1, PART_BYTES // max(schema.row_bytes, 1))
    beside = name_beside(directory)
    beside.mkdir(DIRECTORY_MODE, parents=True)
    try:
        for number, batch in enumerate(_batches(dataset, schema, batch_size=rows)):
            arrays: dict[str, Any] = {n: _without_objects(n, a) for n, a in plain(batch).items()}
            np.savez(beside / f"part-{number:05}.npz", **arrays)
        beside.rename(directory)
    except BaseException:
        for part in beside.iterdir():
            part.unlink()
        beside.rmdir()
        raise
    return directory


def write_hdf5(
    dataset: Consumed, path: str | PathLike[str], *, compression: str | None, group: str
) -> Path:
    """Write one HDF5 file. Not collective."""
    check_choice("compression", compression, (None, "gzip", "lzf"))
    check_text("group", group)
    require("h5py", to="to write HDF5 files")
    schema = dataset.schema()
    check_names(schema)
    if unknown := [n for n, c in schema.items() if hdf5_type(c.dtype) is None]:
        raise ConfigError(
            f"columns {', '.join(map(repr, unknown))} are "
            f"{', '.join(str(schema[name].dtype) for name in unknown)}, which HDF5 does not "
            f"support. Write Parquet, or convert them to numbers or texts with map_batches()."
        )
    rows = max(1, 8 * 2**20 // max(schema.row_bytes, 1))
    # Uncompressed rows of known number are contiguous, which is fastest to read.
    total = dataset.num_rows if dataset.keeps_rows and compression is None else None
    with _beside(path, (".h5", ".hdf5")) as beside, open_file(beside, "w") as file:
        where = file.require_group(group)
        made = {
            name: _make(where, name, column, total, compression) for name, column in schema.items()
        }
        start = 0
        for batch in _batches(dataset, schema, batch_size=rows):
            stop = start + num_rows(batch)
            for name, array in plain(batch).items():
                if array.dtype.kind == "O":
                    _refuse_other_than_text(name, array, start)
                if total is None:
                    made[name].resize(stop, axis=0)
                made[name][start:stop] = as_in_hdf5(array)
            start = stop
    return _target(path)


def _make(group: Any, name: str, column: Column, rows: int | None, compression: str | None) -> Any:
    dtype = hdf5_type(column.dtype)
    if rows is not None:
        return group.create_dataset(name, (rows, *column.shape), dtype)
    chunk = max(1, min(2**20 // max(column.row_bytes, 1), 2**17))
    return group.create_dataset(
        name,
        (0, *column.shape),
        dtype,
        maxshape=(None, *column.shape),
        chunks=(chunk, *column.shape),
        compression=compression,
    )


def _refuse_other_than_text(name: str, array: np.ndarray, start: int) -> None:
    for row, value in enumerate(array.reshape(-1).tolist()):
        if not is_text(value):
            raise ConfigError(
                f"column {name!r} has {value!r}, a {type(value).__name__}, at value {row} after "
                f"row {start}. HDF5 stores numbers, and texts in UTF-8 without NUL characters. "
                f"Write Parquet, or convert the column with map_batches()."
            )


def _without_objects(name: str, array: np.ndarray) -> np.ndarray:
    """Return a column as NumPy's files store it: texts of fixed length."""
    if array.dtype.kind != "O":
        return array
    texts = array.reshape(-1).tolist()
    # NumPy drops NUL characters at the end of a text.
    if all(isinstance(text, str) and not text.endswith("\0") for text in texts):
        return array.astype("U")
    raise ConfigError(
        f"column {name!r} holds objects or misses texts, but NumPy's files store only numbers and "
        f"texts. Write Parquet, or leave it out with drop_columns()."
    )


@contextmanager
def _beside(path: str | PathLike[str], suffixes: tuple[str, ...]) -> Iterator[Path]:
    """Yield a temporary path to write to, and rename the complete file to its target."""
    target = _target(path)
    if target.suffix not in suffixes:
        raise ConfigError(
            f"{target} does not end with {' or '.join(suffixes)}. Give a path that does."
        )
    if target.exists():
        raise ConfigError(f"{target} exists. Delete it, or give another path.")
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = name_beside(target)
    try:
        yield beside
        os.replace(beside, target)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def _target(path: str | PathLike[str]) -> Path:
    return Path(arguments.path("path", path)).expanduser()


def _batches(dataset: Consumed, schema: Schema, *, batch_size: int) -> Iterator[Batch]:
    """Return the rows in the types of a schema, in batches, at least one."""
    # NumPy's texts are as long as the longest one of a batch.
    schema = Schema(
        tuple(
            (name, replace(c, dtype=np.dtype(object)) if c.dtype.kind == "U" else c)
            for name, c in schema.items()
        )
    )
    start = 0
    for batch in dataset.typed_batches(range(dataset.source.num_rows), batch_size):
        where = f"rows {start} to {start + num_rows(batch)}"
        if batch.keys() != {*schema}:
            raise ConfigError(
                f"{where}: map_batches() returned columns {', '.join(map(repr, batch))}, but "
                f"{', '.join(map(repr, schema))} for the first rows. Return the same columns for "
                f"every batch."
            )
        yield conform(batch, schema, where=where, advice=_ADVICE)
        start += num_rows(batch)
    if not start:
        yield empty(schema)


_ADVICE = "The first rows decide the type: return it for every batch, as with .astype('float64')."


def _tables(
    dataset: Consumed, schema: Schema, *, batch_size: int, keep_categories: bool = False
) -> Iterator[Any]:
    """Return the rows as Arrow tables of one schema, at least one."""
    pyarrow = require("pyarrow", to="to write Parquet and CSV files")
    kinds: dict[str, Any] = {}
    start = 0
    for batch in _batches(dataset, schema, batch_size=batch_size):
        columns = {}
        for name, array in (batch if keep_categories else plain(batch)).items():
            where = f"rows {start} to {start + len(array)}"
            column = _arrow_column(name, array, kinds.get(name), where)
            if name not in kinds and pyarrow.types.is_null(column.type):
                column = column.cast(_later_type(dataset, name, batch_size))
            kinds[name] = column.type
            columns[name] = column
        yield pyarrow.table(columns)
        start += num_rows(batch)


def _arrow_column(name: str, array: np.ndarray, kind: Any, where: str) -> Any:
    """Return a column in an Arrow type; None is the type that Arrow chooses."""
    pyarrow = require("pyarrow", to="to write Parquet and CSV files")
    try:
        if kind is not None and pyarrow.types.is_dictionary(kind):
            # Other batches may lack categories, or have others.
            return to_arrow({name: array}).column(0).cast(kind)
        array = array if kind is None else plain({name: array})[name]
        if kind is not None and array.dtype.kind == "O" and array.ndim == 1:
            return _in_arrow_type(array, kind)
        return to_arrow({name: array}).column(0)
    except pyarrow.ArrowException as error:
        raise ConfigError(
            f"{where}: the values of column {name!r} are not of one type"
            f"{'' if kind is None else f', {kind} like the rows before'}: {error}. {_ADVICE}"
        ) from error


def _in_arrow_type(array: np.ndarray, kind: Any) -> Any:
    """Return objects in an Arrow type that can represent all of them.

    With integers or days as the type, Arrow would round 0.5 to 0, and truncate times.
    """
    pyarrow = require("pyarrow", to="to write Parquet and CSV files")
    own = pyarrow.array(array, from_pandas=True)
    if not _may_become(own.type, kind):
        raise pyarrow.ArrowInvalid(f"these are {own.type}")
    return own.cast(kind)


def _may_become(own: Any, kind: Any) -> bool:
    """Return whether Arrow's cast from one type to another keeps the values, or raises."""
    types = require("pyarrow", to="to write Parquet and CSV files").types
    if own.equals(kind) or types.is_null(own):
        return True
    if types.is_list(own) and types.is_list(kind):
        return _may_become(own.value_type, kind.value_type)
    if types.is_struct(own) and types.is_struct(kind):
        known = {field.name: field.type for field in kind}
        return all(f.name in known and _may_become(f.type, known[f.name]) for f in own)
    families = (
        (types.is_integer, types.is_floating),
        (types.is_decimal,),
        (types.is_timestamp,),
        (types.is_duration,),
    )
    is_alike = any(any(i(own) for i in f) and any(i(kind) for i in f) for f in families)
    return is_alike and getattr(own, "tz", None) == getattr(kind, "tz", None)


def _later_type(dataset: Consumed, name: str, batch_size: int) -> Any:
    """Return Arrow's type of a column whose first values are all missing."""
    pyarrow = require("pyarrow", to="to write Parquet and CSV files")
    for batch in dataset.iter_batches(batch_size=batch_size, columns=[name]):
        kind = _arrow_column(name, batch[name], None, "all rows").type
        if not pyarrow.types.is_null(kind):
            return kind
    return pyarrow.string()
