"""Chunks of an HDF5 dataset, decoded outside of HDF5 and thus by several threads at once."""

from __future__ import annotations

import ctypes
import itertools
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from hpctrain.data.layout import Chunked, Filter
from hpctrain.data.slabs import RawFile

DEFLATE, SHUFFLE, BLOSC = 1, 2, 32001

CACHED_BYTES = 32 * 2**20
"""Size of the cache of partly read chunks, which the next read need not decode again."""

Decode = Callable[[np.ndarray, np.ndarray], None]
"""Decodes the first array, bytes, into the second one, which has room for exactly the result."""


def find_decoder(filters: tuple[Filter, ...], itemsize: int) -> Decode | None:
    """Return a decoder for filters, or None if only HDF5 can decode them.

    Not collective.

    Parameters
    ----------
    filters
        In the order in which they were applied.
    itemsize
        Bytes of an element.
    """
    numbers = [f.number for f in filters]
    if not numbers:
        return np.copyto
    if numbers == [BLOSC]:
        return _find_blosc()
    if numbers == [DEFLATE]:
        return _inflate
    if numbers == [SHUFFLE, DEFLATE]:
        return lambda encoded, out: _inflate_shuffled(encoded, out, itemsize)
    return None


class ChunkReader:
    """Reads rows of a chunked dataset.

    Parameters
    ----------
    file
        The file of the dataset.
    layout
        Where its chunks are.
    shape
        Shape of the dataset, rows first.
    dtype
        Type of an element.
    decode
        Decodes a chunk: see `find_decoder`.
    """

    def __init__(
        self,
        file: RawFile,
        layout: Chunked,
        *,
        shape: tuple[int, ...],
        dtype: np.dtype,
        decode: Decode,
    ) -> None:
        self._file = file
        self._layout = layout
        self._shape = shape
        self._dtype = dtype
        self._decode = decode
        self._chunk_bytes = int(np.prod(layout.shape, dtype=np.int64)) * dtype.itemsize
        self._cache: OrderedDict[int, np.ndarray] = OrderedDict()
        self._lock = threading.Lock()

    def read_into(self, rows: range, out: np.ndarray) -> None:
        """Read rows. Not collective. May be called by several threads.

        Parameters
        ----------
        rows
            A range of step 1.
        out
            Contiguous, shape ``(len(rows), ...)``.

        Raises
        ------
        OSError
            If they cannot be read or decoded.
        """
        for index, corner in self._chunks_of(rows):
            extents = list(zip(corner, self._layout.shape, self._shape, strict=True))
            first = max(corner[0], rows.start)
            last = min(corner[0] + self._layout.shape[0], rows.stop)
            width = tuple(slice(at, min(at + size, n)) for at, size, n in extents[1:])
            there = (slice(first - rows.start, last - rows.start), *width)
            target = out[there]
            if target.shape == self._layout.shape and target.flags.c_contiguous:
                self._load(index, target)
            else:
                sizes = (slice(0, w.stop - w.start) for w in width)
                within = (slice(first - corner[0], last - corner[0]), *sizes)
                np.copyto(target, self._cached(index)[within])

    def _chunks_of(self, rows: range) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Return index and first element of the chunks that have these rows."""
        if not rows:
            return
        height, grid = self._layout.shape[0], self._layout.grid
        across = int(np.prod(grid[1:], dtype=np.int64))
        for band in range(rows.start // height, -(-rows.stop // height)):
            for number, place in enumerate(itertools.product(*map(range, grid[1:]))):
                places = (band, *place)
                corner = (p * size for p, size in zip(places, self._layout.shape, strict=True))
                yield band * across + number, tuple(corner)

    def _cached(self, index: int) -> np.ndarray:
        with self._lock:
            if index in self._cache:
                self._cache.move_to_end(index)
                return self._cache[index]
        chunk = np.empty(self._layout.shape, self._dtype)
        self._load(index, chunk)
        with self._lock:
            self._cache[index] = chunk
            while len(self._cache) > 1 and len(self._cache) * self._chunk_bytes > CACHED_BYTES:
                self._cache.popitem(last=False)
        return chunk

    def _load(self, index: int, out: np.ndarray) -> None:
        offset, size = int(self._layout.offsets[index]), int(self._layout.sizes[index])
        if offset < 0:
            out[...] = self._layout.fill
            return
        flat = out.reshape(-1).view(np.uint8)
        skipped = int(self._layout.skipped[index])
        if not self._layout.filters or skipped == (1 << len(self._layout.filters)) - 1:
            self._file.read_into(flat, offset)
            return
        if skipped:
            raise OSError(f"chunk {index} was encoded with only some of the dataset's filters")
        encoded = _scratch(size)
        self._file.read_into(encoded, offset)
        try:
            self._decode(encoded, flat)
        except (ValueError, zlib.error) as error:
            raise OSError(f"chunk {index}, {size} bytes at {offset}: {error}") from error


_of_thread = threading.local()


def _scratch(size: int) -> np.ndarray:
    """Return this thread's buffer for an encoded chunk."""
    if len(getattr(_of_thread, "scratch", ())) < size:
        _of_thread.scratch = np.empty(size + size // 4, np.uint8)
    scratch: np.ndarray = _of_thread.scratch
    return scratch[:size]


def _inflate(encoded: np.ndarray, out: np.ndarray) -> None:
    decoded = zlib.decompress(encoded.data, bufsize=out.size)
    if len(decoded) != out.size:
        raise ValueError(f"decodes to {len(decoded)} bytes, not to {out.size}")
    out[:] = np.frombuffer(decoded, np.uint8)


def _inflate_shuffled(encoded: np.ndarray, out: np.ndarray, itemsize: int) -> None:
    planes = np.empty(out.size, np.uint8)
    _inflate(encoded, planes)
    # HDF5's shuffle stores the first bytes of all elements, then all second bytes, and so on.
    out.reshape(-1, itemsize)[...] = planes.reshape(itemsize, -1).T


@lru_cache(maxsize=1)
def _find_blosc() -> Decode | None:
    """Return the decoder of the library that hdf5plugin brings for HDF5."""
    try:
        import hdf5plugin

        library = ctypes.CDLL(str(next(Path(hdf5plugin.PLUGIN_PATH).glob("libh5blosc.*"))))
        decompress: Any = library.blosc_decompress_ctx
        sizes: Any = library.blosc_cbuffer_sizes
    except (ImportError, StopIteration, OSError, AttributeError):
        return None
    decompress.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    decompress.restype = ctypes.c_int
    sizes.argtypes = [ctypes.c_void_p, *[ctypes.POINTER(ctypes.c_size_t)] * 3]
    sizes.restype = None

    def decode(encoded: np.ndarray, out: np.ndarray) -> None:
        plain, stored, block = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_size_t()
        if encoded.size < 16:
            raise ValueError(f"{encoded.size} bytes are too short for a Blosc header of 16")
        # Blosc trusts its header, and would read beyond the end of a truncated chunk.
        sizes(encoded.ctypes.data, plain, stored, block)
        if stored.value > encoded.size or plain.value != out.size:
            raise ValueError(
                f"the Blosc header gives {plain.value} bytes in {stored.value}, but the chunk has "
                f"{out.size} in {encoded.size}"
            )
        got = decompress(encoded.ctypes.data, out.ctypes.data, out.size, 1)
        if got != out.size:
            raise ValueError(f"Blosc cannot decode it (status {got})")

    return decode
