"""Writing datasets to files, by one process and in passing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hpctrain.data.conform import empty
from hpctrain.data.formats import Batch, num_rows, to_arrow
from hpctrain.data.hdf5 import open_file
from hpctrain.data.optional import require
from hpctrain.data.schema import Column, Schema
from hpctrain.errors import ConfigError

if TYPE_CHECKING:
    from hpctrain.data.dataset import Dataset

ROW_GROUP_BYTES = 64 * 2**20

PART_BYTES = 256 * 2**20
"""Of an ``.npz`` file, which is written at once."""


def write_parquet(dataset: Dataset, path: str | PathLike[str], *, compression: str) -> Path:
    """Write one Parquet file. Not collective."""
    parquet = require("pyarrow.parquet", to="to write Parquet files")
    schema = dataset.schema()
    rows = max(1, ROW_GROUP_BYTES // max(schema.row_bytes, 1))
    with _beside(path, (".parquet", ".pq")) as beside:
        writer = None
        for batch in dataset.iter_batches(batch_size=rows):
            table = to_arrow(batch)
            if writer is None:
                writer = parquet.ParquetWriter(beside, table.schema, compression=compression)
            writer.write_table(table, row_group_size=rows)
        if writer is None:
            parquet.write_table(to_arrow(empty(schema)), beside)
        else:
            writer.close()
    return Path(path)


def write_csv(dataset: Dataset, path: str | PathLike[str]) -> Path:
    """Write one CSV file. Not collective."""
    csv = require("pyarrow.csv", to="to write CSV files")
    schema = dataset.schema()
    if wide := [name for name, column in schema.items() if column.shape]:
        raise ConfigError(
            f"columns {', '.join(map(repr, wide))} have an array in each row, and CSV has none. "
            f"Write Parquet or HDF5, or split them with map_batches()."
        )
    with _beside(path, (".csv",)) as beside:
        writer = None
        for batch in dataset.iter_batches(batch_size=65536):
            table = to_arrow(batch)
            writer = writer or csv.CSVWriter(beside, table.schema)
            writer.write_table(table)
        if writer is None:
            csv.write_csv(to_arrow(empty(schema)), beside)
        else:
            writer.close()
    return Path(path)


def write_numpy(dataset: Dataset, path: str | PathLike[str]) -> Path:
    """Write a directory of ``.npz`` files that are not compressed. Not collective."""
    schema = dataset.schema()
    _refuse_objects(schema, "NumPy's files")
    directory = Path(fspath(path))
    if directory.exists():
        raise ConfigError(f"{directory} exists. Delete it, or give another path.")
    if directory.suffix in (".npy", ".npz"):
        raise ConfigError(
            f"{directory}: write_numpy() writes a directory of .npz files. Give a path without "
            f"{directory.suffix}."
        )
    rows = max(1, PART_BYTES // max(schema.row_bytes, 1))
    beside = directory.with_name(f".{directory.name}.{os.getpid()}")
    beside.mkdir(parents=True)
    try:
        parts = dataset.iter_batches(batch_size=rows)
        for number, batch in enumerate(_at_least_one(parts, schema)):
            np.savez(beside / f"part-{number:05}.npz", **batch)  # type: ignore[arg-type]
        beside.rename(directory)
    except BaseException:
        for part in beside.iterdir():
            part.unlink()
        beside.rmdir()
        raise
    return directory


def write_hdf5(
    dataset: Dataset, path: str | PathLike[str], *, compression: str | None, group: str
) -> Path:
    """Write one HDF5 file. Not collective."""
    h5py = require("h5py", to="to write HDF5 files")
    schema = dataset.schema()
    rows = max(1, 8 * 2**20 // max(schema.row_bytes, 1))
    # Without a filter, and of known size: in one piece, which is read fastest.
    total = dataset.num_rows if dataset.keeps_rows and compression is None else None
    with _beside(path, (".h5", ".hdf5")) as beside, open_file(beside, "w") as file:
        where = file.require_group(group)
        made = {
            name: _make(h5py, where, name, column, total, compression)
            for name, column in schema.items()
        }
        start = 0
        for batch in dataset.iter_batches(batch_size=rows):
            stop = start + num_rows(batch)
            for name, array in batch.items():
                if total is None:
                    made[name].resize(stop, axis=0)
                made[name][start:stop] = array.astype(object) if array.dtype.kind == "U" else array
            start = stop
    return Path(path)


def _make(
    h5py: Any, group: Any, name: str, column: Column, rows: int | None, compression: str | None
) -> Any:
    dtype = h5py.string_dtype() if column.dtype.kind in "OU" else column.dtype
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


def _refuse_objects(schema: Schema, what: str) -> None:
    if objects := [name for name, column in schema.items() if column.dtype.kind == "O"]:
        raise ConfigError(
            f"columns {', '.join(map(repr, objects))} are no numbers, and {what} have only those. "
            f"Write Parquet, or leave them out with drop_columns()."
        )


@contextmanager
def _beside(path: str | PathLike[str], suffixes: tuple[str, ...]) -> Iterator[Path]:
    """Give a path to write to, and rename what was written when it is complete."""
    target = Path(fspath(path))
    if target.suffix not in suffixes:
        raise ConfigError(f"{target} should end with {' or '.join(suffixes)}.")
    if target.exists():
        raise ConfigError(f"{target} exists. Delete it, or give another path.")
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        yield beside
        os.replace(beside, target)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def _at_least_one(batches: Iterable[Batch], schema: Schema) -> Iterator[Batch]:
    none = True
    for batch in batches:
        none = False
        yield batch
    if none:
        yield empty(schema)
