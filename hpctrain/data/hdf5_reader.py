"""Rows of the datasets of an HDF5 file, read without HDF5 where that is possible."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from hpctrain.data.chunks import ChunkReader, find_decoder
from hpctrain.data.known_layouts import Place, known_layouts, remember_layout
from hpctrain.data.layout import Chunked, Contiguous, FilePiece, Virtual, find_layout
from hpctrain.data.open_files import OpenFiles, identity_of
from hpctrain.data.schema import Column
from hpctrain.data.slabs import RawFile
from hpctrain.data.types import as_in_batches, type_in_batches

_Read = Callable[[range, np.ndarray], None]


class Hdf5Reader:
    """Reads rows into existing arrays.

    Parameters
    ----------
    path
        Path of the file.
    open_file
        Opens a file as ``h5py.File``.
    others
        Readers of the files that virtual datasets take rows from.
    """

    def __init__(self, path: str, open_file: Callable[[str], Any], others: OpenFiles) -> None:
        self._path = path
        self._open_file = open_file
        # HDF5 takes longer to open a small file than it takes to read it.
        is_known = known_layouts(path, identity_of(path)) is not None
        self._opened = None if is_known else open_file(path)
        self._raw = RawFile(path)
        self._identity = self._raw.identity()
        self._others = others
        self.checked: dict[str, object] = {}
        """By dataset, the source that has checked its rows and type."""
        self._found: dict[str, tuple[np.dtype, tuple[int, ...], _Read]] = {}

    def close(self) -> None:
        """Close the file. Not collective."""
        self._found.clear()
        self.checked.clear()
        if self._opened is not None:
            self._opened.close()
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
            raise OSError(
                f"it has shape {shape}, but shape {out.shape} from row {rows.start} was requested"
            )
        if out.dtype == dtype and out.flags.c_contiguous:
            read(rows, out)
        else:
            rows_as_stored = np.empty(out.shape, dtype)
            read(rows, rows_as_stored)
            np.copyto(out, as_in_batches(rows_as_stored), casting="unsafe")

    def dataset(self, name: str) -> Any:
        """Return a dataset as ``h5py.Dataset``. Not collective."""
        if (found := self._file.get(name)) is None:
            raise OSError("the dataset no longer exists in the file")
        return found

    def column(self, dataset: str) -> tuple[int, Column]:
        """Return the number of rows, and type and shape of each. Not collective."""
        dtype, shape, _ = self._look_up(dataset)
        return shape[0], column_of(dtype, shape[1:])

    @property
    def _file(self) -> Any:
        if self._opened is None:
            self._opened = self._open_file(self._path)
        return self._opened

    def _look_up(self, dataset: str) -> tuple[np.dtype, tuple[int, ...], _Read]:
        if dataset not in self._found:
            self._found[dataset] = self._find(dataset)
        return self._found[dataset]

    def _find(self, name: str) -> tuple[np.dtype, tuple[int, ...], _Read]:
        """Return the type and shape of a dataset, and the quickest way to read it."""
        known = (known_layouts(self._path, self._identity) or {}).get(name)
        if known and (read := self._without_hdf5(known)):
            return known.dtype, known.shape, read
        dataset = self.dataset(name)
        dtype, shape = dataset.dtype.base, (*dataset.shape, *dataset.dtype.shape)
        if dataset.file.filename != self._file.filename:
            linked = partial(self._read_linked, dataset.file.filename, dataset.name)
            return dtype, shape, linked
        layout = find_layout(dataset)
        place = Place(dtype=dtype, shape=shape, layout=layout)
        if read := self._without_hdf5(place):
            remember_layout(self._path, self._identity, name, place)
            return dtype, shape, read
        if isinstance(layout, Virtual):
            return dtype, shape, partial(self._read_parts, layout, dataset)
        return dtype, shape, partial(read_through_hdf5, dataset)

    def _without_hdf5(self, place: Place) -> _Read | None:
        layout, dtype = place.layout, place.dtype
        if isinstance(layout, Contiguous):
            return partial(_read_contiguous, self._raw, layout)
        if isinstance(layout, Chunked) and (decode := find_decoder(layout.filters, dtype.itemsize)):
            raw, shape = self._raw, place.shape
            return ChunkReader(raw, layout, shape=shape, dtype=dtype, decode=decode).read_into
        return None

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

    def has_rows_like(self, dataset: Any, part: FilePiece) -> bool:
        """Return whether this file still has a part of a virtual dataset. Not collective."""
        source = self._file.get(part.dataset)
        if source is None or source.dtype != dataset.dtype or source.shape[1:] != dataset.shape[1:]:
            return False
        return part.source_row + len(part.rows) <= len(source)


def column_of(dtype: np.dtype, shape: tuple[int, ...]) -> Column:
    """Return the type and shape that a row of an HDF5 dataset has in a batch.

    Not collective.

    Parameters
    ----------
    dtype
        As h5py reports it. Elements may be arrays themselves, which are further axes in NumPy.
    shape
        Shape of a row.
    """
    return Column(dtype=type_in_batches(dtype.base), shape=(*shape, *dtype.shape))


def _read_contiguous(raw: RawFile, layout: Contiguous, rows: range, out: np.ndarray) -> None:
    raw.read_into(out, layout.offset + rows.start * (out.nbytes // len(rows)))


def read_through_hdf5(dataset: Any, rows: range, out: np.ndarray) -> None:
    """Read rows of any kind of ``h5py.Dataset``. Not collective."""
    if dataset.dtype.kind == "O":
        out[...] = dataset.asstr()[rows.start : rows.stop]
    elif dataset.dtype.subdtype is not None:
        out[...] = dataset[rows.start : rows.stop]
    else:
        dataset.read_direct(out, np.s_[rows.start : rows.stop])
