"""Rows in the order of an epoch, some MiB at a time, in memory that is reused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import lcm
from typing import Protocol

import numpy as np

from hpctrain.data.batch import Batch, slice_batch
from hpctrain.data.order import Shuffle, Window
from hpctrain.data.prefetch import Buffers

WINDOW_BYTES = 7 * 2**20
"""Bytes of rows that are permuted together: more do not fit into the cache, fewer mix less."""

PIECE_BYTES = 2 * 2**20
"""Bytes of rows that are read in order: they stay in the cache of the core that uses them."""


class ReadInto(Protocol):
    """Reads rows into existing arrays. Several threads may call it."""

    def __call__(self, rows: range, out: Batch) -> None:
        """Read rows of a range of step 1 into arrays of as many rows. Not collective."""


class Memory:
    """The arrays of windows, kept from one epoch to the next."""

    def __init__(self) -> None:
        self._buffers: dict[str, tuple[object, Buffers]] = {}

    def __reduce__(self) -> tuple[type[Memory], tuple[()]]:
        """Pickle without the arrays."""
        return Memory, ()

    def buffers(self, name: str, dtype: np.dtype, shape: tuple[int, ...]) -> Buffers:
        """Return arrays for a column; arrays of another size are freed. Not collective."""
        kind = (dtype, shape)
        if name not in self._buffers or self._buffers[name][0] != kind:
            self._buffers[name] = (kind, Buffers(partial(np.empty, shape, dtype)))
        return self._buffers[name][1]


class WindowReader:
    """Makes the tasks that read windows.

    Parameters
    ----------
    read_into
        Reads rows.
    columns
        NumPy type and shape of one row of each column.
    memory
        Arrays for the rows.
    """

    def __init__(
        self,
        read_into: ReadInto,
        columns: Mapping[str, tuple[np.dtype, tuple[int, ...]]],
        memory: Memory,
    ) -> None:
        self._read_into = read_into
        self._columns = dict(columns)
        self._memory = memory
        self._buffers: dict[str, Buffers] = {}

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of all columns."""
        return sum(
            dtype.itemsize * int(np.prod(shape, dtype=np.int64))
            for dtype, shape in self._columns.values()
        )

    def shuffled(
        self, shuffle: Shuffle, positions: Sequence[range]
    ) -> Iterator[Callable[[], Batch]]:
        """Return a task for each window that has some of the positions. Not collective."""
        self._prepare(shuffle.window_rows)
        for rows in positions:
            start = rows.start
            while start < rows.stop:
                window = shuffle.window_at(start)
                stop = min(window.positions.stop, rows.stop)
                yield partial(self._read_shuffled, window, range(start, stop))
                start = stop

    def in_order(
        self, positions: Sequence[range], *, unit_rows: int = 1, batch_size: int = 1
    ) -> Iterator[Callable[[], Batch]]:
        """Return a task for each piece of the positions, which are rows. Not collective.

        Parameters
        ----------
        unit_rows
            Rows that can only be read as a whole, beginning with the first: of a chunk.
        batch_size
            Rows of a batch: a piece is whole batches unless that makes it much larger.
        """
        step = lcm(unit_rows, batch_size)
        if step * self.row_bytes > 4 * PIECE_BYTES:
            step = unit_rows
        step *= max(1, PIECE_BYTES // max(step * self.row_bytes, 1))
        self._prepare(step)
        for rows in positions:
            # Without a unit, batches begin with the first row.
            start = rows.start
            stop = start + step if unit_rows == 1 else start // step * step + step
            while start < rows.stop:
                yield partial(self._read_in_order, range(start, min(stop, rows.stop)))
                start, stop = stop, stop + step

    def _prepare(self, rows: int) -> None:
        self._buffers = {
            name: self._memory.buffers(name, dtype, (rows, *shape))
            for name, (dtype, shape) in self._columns.items()
        }

    def _empty(self, rows: int) -> Batch:
        return {name: buffers.get()[:rows] for name, buffers in self._buffers.items()}

    def _read_in_order(self, rows: range) -> Batch:
        out = self._empty(len(rows))
        self._read_into(rows, out)
        return out

    def _read_shuffled(self, window: Window, positions: range) -> Batch:
        pool = self._empty(len(window.positions))
        offset = 0
        for slab in window.slabs:
            self._read_into(slab, slice_batch(pool, offset, offset + len(slab)))
            offset += len(slab)
        first = positions.start - window.positions.start
        order = window.permutation()[first : first + len(positions)]
        out = self._empty(len(positions))
        for name, rows in pool.items():
            # With another mode NumPy uses a temporary buffer.
            np.take(rows, order, axis=0, out=out[name], mode="clip")
        return out
