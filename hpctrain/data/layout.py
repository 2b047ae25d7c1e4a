"""The layout of an HDF5 dataset on disk, to read its rows without HDF5.

HDF5 has one global lock, so it reads and decodes on one core at a time. This module asks it only
where the bytes are; hpctrain reads and decodes them itself. A layout that hpctrain does not support
is `Opaque`, and read by HDF5.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Contiguous:
    """All rows, one after another."""

    offset: int
    """Bytes from the beginning of the file."""


@dataclass(frozen=True, kw_only=True)
class Filter:
    """A filter that chunks were encoded with."""

    number: int
    values: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Chunked:
    """Rows in chunks, each of which may be compressed."""

    shape: tuple[int, ...]
    """Shape of a chunk, rows first. Chunks at the upper edges are stored as large as the others."""
    grid: tuple[int, ...]
    """Chunks along each axis."""
    filters: tuple[Filter, ...]
    """In the order in which they were applied."""
    offsets: np.ndarray
    """Bytes from the beginning of the file, -1 for a chunk that was never written; [chunks]."""
    sizes: np.ndarray
    """Bytes on disk; [chunks]."""
    skipped: np.ndarray
    """Filters that were not applied to a chunk, a bit for each; [chunks]."""
    fill: Any
    """Value of elements that were never written."""


@dataclass(frozen=True, kw_only=True)
class FilePiece:
    """Rows of a virtual dataset."""

    rows: range
    path: str
    dataset: str
    source_row: int
    """Row of that dataset which is the first of these."""


@dataclass(frozen=True, kw_only=True)
class Virtual:
    """Rows of other datasets, without a gap."""

    parts: tuple[FilePiece, ...]


@dataclass(frozen=True, kw_only=True)
class Opaque:
    """A layout that only HDF5 can read."""


Layout = Contiguous | Chunked | Virtual | Opaque


def find_layout(dataset: Any) -> Layout:
    """Return the layout of a dataset on disk.

    Not collective.

    Parameters
    ----------
    dataset
        An open ``h5py.Dataset``.
    """
    import h5py

    if dataset.is_virtual:
        return _find_virtual(dataset)
    if not dataset.shape or not _is_stored_as_in_memory(dataset, h5py):
        return Opaque()
    properties = dataset.id.get_create_plist()
    if properties.get_layout() == h5py.h5d.CONTIGUOUS and not properties.get_external_count():
        # HDF5 may allocate no storage before the first write.
        if dataset.id.get_storage_size() != dataset.nbytes or not dataset.nbytes:
            return Opaque()
        return Contiguous(offset=dataset.id.get_offset())
    # h5py built with HDF5 1.10, as in many cluster modules, has no chunk_iter.
    if properties.get_layout() == h5py.h5d.CHUNKED and hasattr(dataset.id, "chunk_iter"):
        return _find_chunks(dataset, properties)
    return Opaque()


def _is_stored_as_in_memory(dataset: Any, h5py: Any) -> bool:
    """Return whether a row has the same bytes in the file as in NumPy's array."""
    dtype = dataset.dtype
    if dtype.kind not in "biufc":
        return False
    return bool(dataset.id.get_type().equal(h5py.h5t.py_create(dtype, logical=True)))


def _find_chunks(dataset: Any, properties: Any) -> Chunked:
    shape = dataset.chunks
    grid = tuple(-(-n // c) for n, c in zip(dataset.shape, shape, strict=True))
    count = int(np.prod(grid, dtype=np.int64))
    offsets = np.full(count, -1, np.int64)
    sizes = np.zeros(count, np.int64)
    skipped = np.zeros(count, np.uint32)
    strides = [int(np.prod(grid[axis + 1 :], dtype=np.int64)) for axis in range(len(grid))]

    def add(chunk: Any) -> None:
        place = [start // size for start, size in zip(chunk.chunk_offset, shape, strict=True)]
        # A dataset that was shrunk may still have chunks beyond its end.
        if all(at < n for at, n in zip(place, grid, strict=True)):
            index = sum(at * stride for at, stride in zip(place, strides, strict=True))
            offsets[index], sizes[index] = chunk.byte_offset, chunk.size
            skipped[index] = chunk.filter_mask

    if count:
        # get_chunk_info() searches all chunks at each call.
        dataset.id.chunk_iter(add)
    filters = [properties.get_filter(i) for i in range(properties.get_nfilters())]
    return Chunked(
        shape=shape,
        grid=grid,
        filters=tuple(Filter(number=f[0], values=tuple(f[2])) for f in filters),
        offsets=offsets,
        sizes=sizes,
        skipped=skipped,
        fill=dataset.fillvalue,
    )


def _find_virtual(dataset: Any) -> Layout:
    parts = []
    folder = Path(dataset.file.filename).absolute().parent
    for mapping in dataset.virtual_sources():
        rows = _rows_of(mapping.vspace, dataset.shape)
        # A selection of a whole source may lack its shape, which is then that of the target.
        source = _rows_of(mapping.src_space, mapping.src_space.shape or dataset.shape)
        if rows is None or source is None:
            return Opaque()
        # HDF5 searches other directories too: it reads what is not in this one.
        name, inner = source_name(mapping.file_name), source_name(mapping.dset_name)
        if name is None or inner is None:
            return Opaque()
        path = dataset.file.filename if name == "." else str(folder / name)
        if not Path(path).exists():
            return Opaque()
        parts.append(FilePiece(rows=rows, path=path, dataset=inner, source_row=source.start))
    parts.sort(key=lambda part: part.rows.start)
    borders = [0, *itertools.chain(*((p.rows.start, p.rows.stop) for p in parts)), len(dataset)]
    if any(end != start for end, start in zip(borders[::2], borders[1::2], strict=True)):
        return Opaque()
    return Virtual(parts=tuple(parts))


def source_name(name: str) -> str | None:
    """Return the file or dataset that a virtual dataset names; None if it names many with ``%b``.

    Not collective. HDF5 reads both names as a format: ``%%`` is a percent sign, and ``%b`` the
    number of a block.
    """
    return None if "%b" in name.replace("%%", "") else name.replace("%%", "%")


def _rows_of(space: Any, shape: tuple[int, ...]) -> range | None:
    """Return the rows of a selection, None unless it is whole rows one after another."""
    import h5py

    if space.get_select_type() == h5py.h5s.SEL_ALL:
        return range(shape[0])
    if space.get_select_type() != h5py.h5s.SEL_HYPERSLABS or not space.is_regular_hyperslab():
        return None
    starts, strides, counts, blocks = space.get_regular_hyperslab()
    axes = list(zip(starts, strides, counts, blocks, strict=True))
    if any(count != 1 and stride != block for _, stride, count, block in axes):
        return None
    extents = [range(start, start + count * block) for start, _, count, block in axes]
    if any(e != range(n) for e, n in zip(extents[1:], shape[1:], strict=True)):
        return None
    return extents[0] if extents[0].stop <= shape[0] else None
