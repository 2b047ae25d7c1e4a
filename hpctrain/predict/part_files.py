"""Files of one part: columns are appended in the order of the rows."""

from __future__ import annotations

import abc
import os
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from hpctrain.data.formats import Batch, concatenate, num_rows, to_arrow
from hpctrain.data.optional import require
from hpctrain.errors import ConfigError
from hpctrain.predict.batches import flatten_columns

_BUFFER_BYTES = 4 * 2**20


class PartFile(abc.ABC):
    """The file of one part, under another name until it is complete.

    Parameters
    ----------
    path
        Its final name.
    rows
        Rows of the part; None if that is not known before the end.
    """

    suffix: ClassVar[str]

    def __init__(self, path: Path, *, rows: int | None) -> None:
        self._path = path
        self._beside = path.with_name(f".{path.name}.{os.getpid()}")
        self._rows = rows
        self._columns: dict[str, Any] | None = None
        self._held: list[Batch] = []
        self._held_bytes = 0

    def append(self, batch: Batch) -> None:
        """Append rows. Not collective.

        Raises
        ------
        ConfigError
            If they have other columns than those before, or columns that the format does not have.
        """
        kinds = {name: (values.dtype, values.shape[1:]) for name, values in batch.items()}
        if self._columns is None:
            self._columns = kinds
        elif kinds != self._columns:
            raise ConfigError(
                f"the predictor gave {_describe(kinds)} for one batch and "
                f"{_describe(self._columns)} for another. The columns of all batches have to be "
                f"the same."
            )
        self._held.append(batch)
        self._held_bytes += sum(values.nbytes for values in batch.values())
        if self._rows is not None and self._held_bytes >= _BUFFER_BYTES:
            self._flush()

    def complete(self) -> None:
        """Write what is left, and give the file its name once it is on disk. Not collective."""
        if self._rows is None:
            self._rows = sum(map(num_rows, self._held))
        self._flush()
        self._close()
        sync_file(self._beside)
        os.replace(self._beside, self._path)

    def abandon(self) -> None:
        """Remove what there is. Not collective."""
        try:
            self._close()
        finally:
            self._beside.unlink(missing_ok=True)

    def _flush(self) -> None:
        if self._held:
            self._write(concatenate(self._held))
            self._held, self._held_bytes = [], 0

    @abc.abstractmethod
    def _write(self, batch: Batch) -> None:
        """Append rows to the file, which is made at the first call."""

    @abc.abstractmethod
    def _close(self) -> None:
        """Close the file, if it is open."""


class Hdf5Part(PartFile):
    """One contiguous dataset a column."""

    suffix = ".h5"

    _file: Any = None
    _offset = 0

    def _write(self, batch: Batch) -> None:
        if self._file is None:
            h5py = require("h5py", to="to write HDF5 files")
            self._file = h5py.File(self._beside, "w")
            for name, values in batch.items():
                shape = (self._rows, *values.shape[1:])
                self._file.create_dataset(name, shape, dtype=_hdf5_type(name, values))
        end = self._offset + num_rows(batch)
        for name, values in batch.items():
            self._file[name][self._offset : end] = values
        self._offset = end

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()


class ParquetPart(PartFile):
    """Columns, compressed; those of more dimensions are tensors of fixed shape."""

    suffix = ".parquet"

    _writer: Any = None

    def _write(self, batch: Batch) -> None:
        parquet = require("pyarrow.parquet", to="to write Parquet files")
        table = to_arrow(batch)
        if self._writer is None:
            self._writer = parquet.ParquetWriter(self._beside, table.schema)
        self._writer.write_table(table)

    def _close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()


class CsvPart(PartFile):
    """Lines, the first of them the names. An n-d column is one for each component."""

    suffix = ".csv"

    _file: Any = None

    def _write(self, batch: Batch) -> None:
        csv = require("pyarrow.csv", to="to write CSV files")
        is_first = self._file is None
        if self._file is None:
            self._file = self._beside.open("wb")
        csv.write_csv(
            to_arrow(flatten_columns(batch)), self._file, csv.WriteOptions(include_header=is_first)
        )

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()


class NumpyPart(PartFile):
    """One array."""

    suffix = ".npy"

    _file: Any = None

    def _write(self, batch: Batch) -> None:
        values = only_column(batch)
        if self._file is None:
            self._file = self._beside.open("wb")
            header = {
                "descr": np.lib.format.dtype_to_descr(values.dtype),
                "fortran_order": False,
                "shape": (self._rows, *values.shape[1:]),
            }
            np.lib.format.write_array_header_1_0(self._file, header)
        self._file.write(np.ascontiguousarray(values).data)

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()


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
            f"a .npy file holds one array of numbers, and the predictor gave "
            f"{', '.join(f'{name} {values.dtype}' for name, values in batch.items())}. Choose "
            f"another output: .h5, .parquet or .csv."
        )
    return next(iter(batch.values()))


def _hdf5_type(name: str, values: np.ndarray[Any, Any]) -> Any:
    import h5py

    if values.dtype.kind in "OU":
        if not all(isinstance(value, str) for value in values.reshape(-1)[:100]):
            raise ConfigError(
                f"column {name!r} holds objects, of which HDF5 knows nothing. Leave it out of "
                f"keep_columns, or choose a .parquet output."
            )
        return h5py.string_dtype()
    return values.dtype


def _describe(kinds: dict[str, Any]) -> str:
    return ", ".join(f"{n} {dtype}{list(shape) or ''}" for n, (dtype, shape) in kinds.items())
