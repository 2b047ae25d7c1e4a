"""Rows of the datasets of an HDF5 file, read past HDF5 where that is possible."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from hpctrain.data.chunks import ChunkReader, find_decoder
from hpctrain.data.layout import Chunked, Contiguous, Part, Virtual, find_layout
from hpctrain.data.open_files import OpenFiles
from hpctrain.data.schema import Column
from hpctrain.data.slabs import RawFile
from hpctrain.data.types import as_in_batches, type_in_batches

_Read = Callable[[range, np.ndarray], None]


class Hdf5Reader:
    """Reads rows into arrays that exist already.

    Parameters
    ----------
    path
        Of the file.
    open_file
        Opens a file as ``h5py.File``.
    others
        Readers of the files that virtual datasets take rows from.
    """

    def __init__(self, path: str, open_file: Callable[[str], Any], others: OpenFiles) -> None:
        self._file = open_file(path)
        self._raw = RawFile(path)
        self._others = others
        self.checked: dict[str, object] = {}
        """For whom a dataset was found to be what it should be."""
        self._found: dict[str, tuple[np.dtype, tuple[int, ...], _Read]] = {}

    def close(self) -> None:
        """Close the file. Not collective."""
        self._found.clear()
        self.checked.clear()
        self._file.close()
        self._raw.close()

    def read_into(self, dataset: str, rows: range, out: np.ndarray) -> None:
        """Read rows of a dataset. Not collective.

        Parameters
        ----------
        dataset
            Its name in the file.
        rows
            A range of step 1.
        out
            Shape ``(len(rows), ...)``. It may have another type than the dataset.

        Raises
        ------
        OSError
            If they cannot be read, or there are no such rows.
        """
        if not rows:
            return
        dtype, shape, read = self._look_up(dataset)
        if out.shape != (len(rows), *shape[1:]) or not 0 <= rows.start < rows.stop <= shape[0]:
            raise OSError(f"it has shape {shape}, and {out.shape} from row {rows.start} is wanted")
        if out.dtype == dtype and out.flags.c_contiguous:
            read(rows, out)
        else:
            rows_as_stored = np.empty(out.shape, dtype)
            read(rows, rows_as_stored)
            np.copyto(out, as_in_batches(rows_as_stored), casting="unsafe")

    def dataset(self, name: str) -> Any:
        """Return a dataset as ``h5py.Dataset``. Not collective."""
        if (found := self._file.get(name)) is None:
            raise OSError("it is not there any more")
        return found

    def column(self, dataset: str) -> tuple[int, Column]:
        """Return the number of rows, and what each holds. Not collective."""
        dtype, shape, _ = self._look_up(dataset)
        return shape[0], column_of(dtype, shape[1:])

    def _look_up(self, dataset: str) -> tuple[np.dtype, tuple[int, ...], _Read]:
        if dataset not in self._found:
            found = self.dataset(dataset)
            shape = (*found.shape, *found.dtype.shape)
            self._found[dataset] = (found.dtype.base, shape, self._find(found))
        return self._found[dataset]

    def _find(self, dataset: Any) -> _Read:
        """Return the quickest way to read a dataset."""
        if dataset.file.filename != self._file.filename:
            return partial(self._read_linked, dataset.file.filename, dataset.name)
        layout = find_layout(dataset)
        if isinstance(layout, Contiguous):
            return partial(_read_contiguous, self._raw, layout)
        if isinstance(layout, Chunked):
            decode = find_decoder(layout.filters, dataset.dtype.itemsize)
            if decode is not None:
                chunks = ChunkReader(
                    self._raw, layout, shape=dataset.shape, dtype=dataset.dtype, decode=decode
                )
                return chunks.read_into
        if isinstance(layout, Virtual):
            return partial(self._read_parts, layout, dataset)
        return partial(read_through_hdf5, dataset)

    def _read_linked(self, path: str, dataset: str, rows: range, out: np.ndarray) -> None:
        """Read rows of a dataset that an external link leads to."""
        with self._others.use(path) as reader:
            reader.read_into(dataset, rows, out)

    def _read_parts(self, layout: Virtual, dataset: Any, rows: range, out: np.ndarray) -> None:
        for part in layout.parts:
            first, last = max(part.rows.start, rows.start), min(part.rows.stop, rows.stop)
            if first < last:
                target = out[first - rows.start : last - rows.start]
                with self._others.use(part.path) as reader:
                    if reader.has_rows_like(dataset, part):
                        start = part.source_row + first - part.rows.start
                        reader.read_into(part.dataset, range(start, start + last - first), target)
                    else:
                        read_through_hdf5(dataset, range(first, last), target)

    def has_rows_like(self, dataset: Any, part: Part) -> bool:
        """Return whether this file has a part of a virtual dataset as it is. Not collective."""
        source = self._file.get(part.dataset)
        if source is None or source.dtype != dataset.dtype or source.shape[1:] != dataset.shape[1:]:
            return False
        return part.source_row + len(part.rows) <= len(source)


def column_of(dtype: np.dtype, shape: tuple[int, ...]) -> Column:
    """Return what a row of an HDF5 dataset holds in a batch.

    Not collective.

    Parameters
    ----------
    dtype
        As h5py says it. Elements may be arrays themselves, which are further axes for NumPy.
    shape
        Of a row.
    """
    return Column(dtype=type_in_batches(dtype.base), shape=(*shape, *dtype.shape))


def _read_contiguous(raw: RawFile, layout: Contiguous, rows: range, out: np.ndarray) -> None:
    raw.read_into(out, layout.offset + rows.start * (out.nbytes // len(rows)))


def read_through_hdf5(dataset: Any, rows: range, out: np.ndarray) -> None:
    """Read rows of an ``h5py.Dataset`` of whatever kind. Not collective."""
    if dataset.dtype.kind == "O":
        out[...] = dataset.asstr()[rows.start : rows.stop]
    elif dataset.dtype.subdtype is not None:
        out[...] = dataset[rows.start : rows.stop]
    else:
        dataset.read_direct(out, np.s_[rows.start : rows.stop])
