"""Rows of the datasets of an HDF5 file, read past HDF5 where that is possible."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from hpctrain.data.chunks import ChunkReader, find_decoder
from hpctrain.data.layout import Chunked, Contiguous, Part, Virtual, find_layout
from hpctrain.data.open_files import OpenFiles
from hpctrain.data.slabs import RawFile

_Read = Callable[[range, np.ndarray], None]


class Hdf5Reader:
    """Reads rows into arrays that exist already.

    Parameters
    ----------
    path
        Of the file.
    open_file
        Opens a file as ``h5py.File``: this one, and those of virtual datasets.
    """

    def __init__(self, path: str, open_file: Callable[[str], Any]) -> None:
        self._file = open_file(path)
        self._raw = RawFile(path)
        self._others = OpenFiles(partial(Hdf5Reader, open_file=open_file))
        self._found: dict[str, tuple[np.dtype, _Read]] = {}

    def close(self) -> None:
        """Close the file. Not collective."""
        self._file.close()

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
            If they cannot be read.
        """
        if not rows:
            return
        if dataset not in self._found:
            found = self._file[dataset]
            self._found[dataset] = (found.dtype, self._find(found))
        dtype, read = self._found[dataset]
        if out.dtype == dtype and out.flags.c_contiguous:
            read(rows, out)
        else:
            rows_as_stored = np.empty(out.shape, dtype)
            read(rows, rows_as_stored)
            np.copyto(out, rows_as_stored, casting="unsafe")

    def _find(self, dataset: Any) -> _Read:
        """Return the quickest way to read a dataset."""
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

    def _read_parts(self, layout: Virtual, dataset: Any, rows: range, out: np.ndarray) -> None:
        for part in layout.parts:
            first, last = max(part.rows.start, rows.start), min(part.rows.stop, rows.stop)
            if first < last:
                target = out[first - rows.start : last - rows.start]
                reader = self._others.get(part.path)
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


def _read_contiguous(raw: RawFile, layout: Contiguous, rows: range, out: np.ndarray) -> None:
    raw.read_into(out, layout.offset + rows.start * (out.nbytes // len(rows)))


def read_through_hdf5(dataset: Any, rows: range, out: np.ndarray) -> None:
    """Read rows of an ``h5py.Dataset`` of whatever kind. Not collective."""
    if dataset.dtype.kind == "O":
        out[...] = dataset.asstr()[rows.start : rows.stop]
    else:
        dataset.read_direct(out, np.s_[rows.start : rows.stop])
