"""Files of one part: columns are appended in the order of the rows."""

from __future__ import annotations

import abc
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from hpctrain.data.arrow_batches import to_arrow
from hpctrain.data.batch import Batch, concatenate, num_rows
from hpctrain.data.hdf5 import as_in_hdf5, check_names, hdf5_type, is_text
from hpctrain.data.optional import require
from hpctrain.errors import ConfigError
from hpctrain.missing import is_missing
from hpctrain.own_files import create_file, name_beside
from hpctrain.predict.batches import flatten_columns
from hpctrain.predict.parquet_types import append_table

_BUFFER_BYTES = 4 * 2**20
_CHUNK_BYTES = 2**20

NOTHING = "nothing"
"""Kind of a column of objects that are all missing: the first batch with a value settles it."""


class PartFile(abc.ABC):
    """The file of one part, under a temporary name until it is complete.

    Parameters
    ----------
    path
        Its final name.
    rows
        Rows of the part; None if unknown before the end.
    kinds
        Types of objects, by column, for batches in which all are missing.
    """

    suffix: ClassVar[str]

    def __init__(
        self, path: Path, *, rows: int | None, kinds: Mapping[str, str] | None = None
    ) -> None:
        self._path = path
        self._kinds = kinds or {}
        self._beside = name_beside(path)
        self._rows = rows
        self._held: list[Batch] = []
        self._held_bytes = 0
        self._appended = 0
        self._file: Any = None
        """`_beside`, open for writing since the first rows."""

    @classmethod
    def check_names(cls, names: Iterable[str]) -> None:
        """Check that the format supports the names of columns.

        Not collective.

        Raises
        ------
        ConfigError
            If it does not.
        """
        return

    @classmethod
    def check_columns(cls, batch: Batch) -> None:
        """Check that the format supports columns, before anything is written.

        Not collective.

        Raises
        ------
        ConfigError
            If it does not.
        """
        cls.check_names(batch)

    @classmethod
    def check_values(cls, batch: Batch) -> None:
        """Check that the format stores values without a change.

        Not collective.

        Raises
        ------
        ConfigError
            If it does not.
        """
        return

    def append(self, batch: Batch) -> None:
        """Append rows, all of the same columns. Not collective."""
        self._appended += num_rows(batch)
        if self._rows is not None and self._appended > self._rows:
            raise self._uneven()
        self._held.append(batch)
        self._held_bytes += sum(values.nbytes for values in batch.values())
        if self._held_bytes >= _BUFFER_BYTES:
            self._flush()

    def complete(self) -> None:
        """Write the remaining rows, and rename the file once it is on disk. Not collective."""
        is_new = self._rows is None
        if self._rows is None:
            self._rows = self._appended
        if self._rows != self._appended:
            raise self._uneven()
        self._flush()
        if is_new:
            self._settle_rows()
        self._close()
        sync_file(self._beside)
        os.replace(self._beside, self._path)

    def abandon(self) -> None:
        """Remove the incomplete file. Not collective."""
        try:
            self._close()
        finally:
            self._beside.unlink(missing_ok=True)

    def _uneven(self) -> ConfigError:
        return ConfigError(
            f"the predictor returned {self._appended} rows for {self._rows}: a row for each row of "
            f"some batches, but not of others. Let it return a row for each row of every batch, or "
            f"of none."
        )

    def _flush(self) -> None:
        if self._held:
            self._write(concatenate(self._held))
            self._held, self._held_bytes = [], 0

    @abc.abstractmethod
    def _write(self, batch: Batch) -> None:
        """Append rows to the file, which the first call creates."""

    def _settle_rows(self) -> None:
        """Write the number of rows, which was unknown until now, into the open file."""
        return

    def _close(self) -> None:
        """Close the file, if it is open."""
        file, self._file = self._file, None
        if file is not None:
            file.close()


class Hdf5Part(PartFile):
    """One dataset for each column: contiguous, or in chunks while the rows are not known."""

    suffix = ".h5"

    @classmethod
    def check_names(cls, names: Iterable[str]) -> None:
        """Check that names are not paths in HDF5."""
        check_names(names)

    @classmethod
    def check_columns(cls, batch: Batch) -> None:
        """Check that HDF5 supports the types."""
        cls.check_names(batch)
        for name, values in batch.items():
            if hdf5_type(values.dtype) is None:
                raise _no_type(name, str(values.dtype), cls)

    @classmethod
    def check_values(cls, batch: Batch) -> None:
        """Check that objects are texts, none missing."""
        for name, values in batch.items():
            if values.dtype.kind == "O":
                for value in values.reshape(-1):
                    if not is_text(value):
                        raise _no_type(name, f"{_shown(value)} among its values", cls)

    _offset = 0

    def _write(self, batch: Batch) -> None:
        if self._file is None:
            h5py = require("h5py", to="to write HDF5 files")
            self._file = h5py.File(self._beside, "x")
            for name, values in batch.items():
                self._create(name, values)
        end = self._offset + num_rows(batch)
        for name, values in batch.items():
            if end > len(self._file[name]):
                self._file[name].resize(end, axis=0)
            self._file[name][self._offset : end] = as_in_hdf5(values)
        self._offset = end

    def _create(self, name: str, values: np.ndarray[Any, Any]) -> None:
        dtype, row = hdf5_type(values.dtype), values.shape[1:]
        if self._rows is not None:
            self._file.create_dataset(name, (self._rows, *row), dtype=dtype)
            return
        rows = min(max(1, _CHUNK_BYTES * len(values) // max(1, values.nbytes)), len(values))
        self._file.create_dataset(
            name, values.shape, dtype=dtype, maxshape=(None, *row), chunks=(rows, *row)
        )


class ParquetPart(PartFile):
    """Columns, compressed; those of more dimensions are tensors of fixed shape."""

    suffix = ".parquet"

    @classmethod
    def check_columns(cls, batch: Batch) -> None:
        """Check that Arrow and Parquet support the types."""
        parquet = require("pyarrow.parquet", to="to write Parquet files")
        for name, values in batch.items():
            with _refusing(name, values, cls):
                parquet.write_table(_table({name: values}, {}), BytesIO())

    def _write(self, batch: Batch) -> None:
        parquet = require("pyarrow.parquet", to="to write Parquet files")
        table = _table(batch, self._kinds)
        if self._file is None:
            self._file = parquet.ParquetWriter(self._beside, table.schema)
        self._file = append_table(self._file, self._beside, table)


class CsvPart(PartFile):
    """Lines after a line of names. An n-d column becomes one column for each component."""

    suffix = ".csv"

    @classmethod
    def check_names(cls, names: Iterable[str]) -> None:
        """Check that names have no line breaks."""
        for name in names:
            if "\n" in name or "\r" in name:
                raise _no_name(name, "a line of CSV ends there", cls)

    @classmethod
    def check_columns(cls, batch: Batch) -> None:
        """Check that types can be text, and that components of arrays have unique names."""
        csv = require("pyarrow.csv", to="to write CSV files")
        cls.check_names(batch)
        flat = [name for n, values in batch.items() for name in flatten_columns({n: values})]
        if twice := sorted({name for name in flat if flat.count(name) > 1}):
            raise ConfigError(
                f"columns {', '.join(map(repr, twice))} would be in the CSV file twice: components "
                f"of an array have such names. Rename them, or choose a .parquet output."
            )
        for name, values in batch.items():
            if values.dtype.kind == "m" or values.dtype == np.float16:
                raise _no_type(name, str(values.dtype), cls)
            with _refusing(name, values, cls):
                csv.write_csv(to_arrow(flatten_columns({name: values})), BytesIO())

    @classmethod
    def check_values(cls, batch: Batch) -> None:
        """Check that objects are texts without line breaks: CSV files are read by lines."""
        for name, values in batch.items():
            if values.dtype.kind == "O":
                for value in values.reshape(-1):
                    if isinstance(value, str) and ("\n" in value or "\r" in value):
                        raise _no_type(name, "a line break in a value", cls)
                    if not isinstance(value, str) and not is_missing(value):
                        raise _no_type(name, f"{_shown(value)} among its values", cls)

    def _write(self, batch: Batch) -> None:
        csv = require("pyarrow.csv", to="to write CSV files")
        is_first = self._file is None
        if self._file is None:
            self._file = os.fdopen(create_file(self._beside), "wb")
        table = to_arrow(flatten_columns(batch))
        if table.num_columns == 1 and table.column(0).null_count:
            # Readers of CSV skip an empty line.
            compute = require("pyarrow.compute", to="to write CSV files")
            texts = compute.fill_null(table.column(0).cast("string"), "")
            table = table.set_column(0, table.schema.names[0], texts)
        csv.write_csv(table, self._file, csv.WriteOptions(include_header=is_first))


class NumpyPart(PartFile):
    """One array."""

    suffix = ".npy"

    @classmethod
    def check_columns(cls, batch: Batch) -> None:
        """Check that there is one array of numbers."""
        only_column(batch)

    def _write(self, batch: Batch) -> None:
        values = only_column(batch)
        if self._file is None:
            self._file = os.fdopen(create_file(self._beside), "wb")
            self._no_row = np.empty((0, *values.shape[1:]), values.dtype)
            self._write_header()
        # Not all types support the buffer protocol.
        self._file.write(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)

    def _settle_rows(self) -> None:
        # NumPy leaves room in the header for any number of rows.
        self._file.seek(0)
        self._write_header()

    def _write_header(self) -> None:
        header = {
            "descr": np.lib.format.dtype_to_descr(self._no_row.dtype),
            "fortran_order": False,
            "shape": (self._rows or 0, *self._no_row.shape[1:]),
        }
        np.lib.format.write_array_header_1_0(self._file, header)


def sync_file(path: Path) -> None:
    """Make the content of a file durable. Not collective."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def only_column(batch: Batch) -> np.ndarray[Any, Any]:
    """Return the only column of a batch. Not collective.

    Raises
    ------
    ConfigError
        If there are more, or it holds no numbers.
    """
    if len(batch) != 1 or next(iter(batch.values())).dtype.hasobject:
        raise ConfigError(
            f"a .npy file holds one array of numbers, but the predictor returned "
            f"{', '.join(f'{name} {values.dtype}' for name, values in batch.items())}. Choose "
            f"another output: .h5, .parquet or .csv."
        )
    return next(iter(batch.values()))


_ALIASES = {"text": "string", "int": "int64", "float": "float64", "bytes": "binary"}


def _table(batch: Batch, kinds: Mapping[str, str]) -> Any:
    """Return rows as an Arrow table; objects that are all missing get the type in `kinds`."""
    pyarrow = require("pyarrow", to="to write Parquet files")
    table = to_arrow(batch)
    for at, field in enumerate(table.schema):
        if pyarrow.types.is_null(field.type):
            kind = kinds.get(field.name, "text")
            if kind == NOTHING:
                continue
            try:
                known = pyarrow.type_for_alias(_ALIASES.get(kind, kind))
            except ValueError as error:
                raise _no_type(
                    field.name, f"batches without a value, and {kind}", ParquetPart
                ) from error
            table = table.set_column(at, field.name, pyarrow.nulls(len(table), known))
    return table


@contextmanager
def _refusing(name: str, values: Any, part_type: type[PartFile]) -> Iterator[None]:
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, TypeError, ValueError, NotImplementedError) as error:
        raise _no_type(name, f"{values.dtype} ({error})", part_type) from error


def _shown(value: Any) -> str:
    """Return a value for a message: on one line, or the shape of an array."""
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape}"
    return f"{' '.join(repr(value).split()):.80}"


def _no_type(name: str, what: str, part_type: type[PartFile]) -> ConfigError:
    other = ".h5" if part_type is ParquetPart else ".parquet"
    return ConfigError(
        f"column {name!r} has {what}, which a {part_type.suffix} output cannot store unchanged. "
        f"Leave it out of keep_columns, convert it, or choose a {other} output."
    )


def _no_name(name: str, why: str, part_type: type[PartFile]) -> ConfigError:
    return ConfigError(
        f"a {part_type.suffix} output cannot have a column {name!r}: {why}. Rename it, or choose a "
        f".parquet output."
    )
