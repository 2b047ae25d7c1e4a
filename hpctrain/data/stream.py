"""The rows of an epoch, read ahead in ranges large enough for a parallel filesystem."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np

from hpctrain.data.batch import Batch, concatenate, num_rows, slice_batch
from hpctrain.data.order import SLABS, Shuffle
from hpctrain.data.schema import Schema
from hpctrain.data.source import Concatenated, RowRanges, Source, read_rows
from hpctrain.data.window import PIECE_BYTES, WINDOW_BYTES, Memory, WindowReader

READ_BYTES = 32 * 2**20
"""Bytes of one read, in whole blocks; at least one block."""

MOST_SHUFFLED_BYTES = 64 * 2**20
"""Bytes of a window of large units (row groups); it has at least two units."""

Task = Callable[[], Batch]


@dataclass(frozen=True)
class Mixing:
    """How the rows of an epoch are shuffled."""

    slab_rows: int
    slabs_per_window: int
    seed: int

    @property
    def window_rows(self) -> int:
        """Rows that are permuted at a time."""
        return self.slab_rows * self.slabs_per_window

    def order(self, num_rows: int, epoch: int) -> Shuffle:
        """Return the order of an epoch. Not collective."""
        return Shuffle(
            num_rows=num_rows,
            slab_rows=self.slab_rows,
            slabs_per_window=self.slabs_per_window,
            seed=self.seed,
            epoch=epoch,
        )


def choose_mixing(source: Source, row_bytes: int, *, buffer_rows: int | None, seed: int) -> Mixing:
    """Return how to shuffle a source.

    Not collective. It depends on the dataset alone, so it is the same on every rank.

    Parameters
    ----------
    row_bytes
        Bytes of a row of the columns that are read.
    buffer_rows
        About how many rows are mixed at a time; None is as many as the cache of a core holds.
    """
    wanted = buffer_rows or max(WINDOW_BYTES // max(row_bytes, 1), 1)
    unit = source.unit_rows
    slab_rows = -(-wanted // SLABS // unit) * unit or unit
    slabs = -(-wanted // slab_rows)
    if buffer_rows is None:
        most = MOST_SHUFFLED_BYTES // max(slab_rows * row_bytes, 1)
        slabs = SLABS if slab_rows > unit else min(max(most, 2), SLABS)
    return Mixing(slab_rows, slabs, seed)


def tasks_in_order(
    source: Source,
    ranges: Sequence[range],
    columns: Sequence[str] | None,
    *,
    memory: Memory,
    batch_size: int = 1,
) -> Iterator[Task]:
    """Return tasks that each read some rows of ranges, in order. Not collective."""
    schema = source.schema.select(columns)
    if not any(map(len, ranges)):
        # An empty batch still has columns and types.
        return iter([partial(source.read, range(0), columns)])
    if _reads_into(source):
        if isinstance(source, Concatenated) and source.unit_rows > 1:
            # The units of each file begin with its first row.
            parts = (part for rows in ranges for part in source.locate(rows))
            return chain.from_iterable(
                tasks_in_order(part, [rows], columns, memory=memory, batch_size=batch_size)
                for part, rows in parts
            )
        return _window_reader(source, schema, memory).in_order(
            ranges, unit_rows=source.unit_rows, batch_size=batch_size
        )
    cut = windows(source, ranges, schema.row_bytes)
    return (partial(read_rows, source, window, columns) for window in cut)


def bytes_of_task(source: Source, columns: Sequence[str] | None) -> int:
    """Return about how many bytes a task of `tasks_in_order` reads at most. Not collective."""
    if _reads_into(source):
        return PIECE_BYTES
    row_bytes = source.schema.select(columns).row_bytes
    return min(max(READ_BYTES, source.unit_rows * row_bytes), source.num_rows * row_bytes)


def tasks_shuffled(
    source: Source,
    order: Shuffle,
    positions: Sequence[range],
    columns: Sequence[str] | None,
    *,
    memory: Memory,
) -> Iterator[Task]:
    """Return tasks that each read the rows at some positions of an order. Not collective."""
    if not any(map(len, positions)):
        return tasks_in_order(source, [], columns, memory=memory)
    reader = _window_reader(source, source.schema.select(columns), memory)
    return reader.shuffled(order, positions)


def windows(source: Source, ranges: Sequence[range], row_bytes: int) -> Iterator[range]:
    """Return ranges split at the ends of blocks, one for each read. Not collective."""
    blocks = source.blocks()
    most = max(1, READ_BYTES // max(row_bytes, 1))
    for rows in ranges:
        start = rows.start
        while start < rows.stop:
            stop = min(rows.stop, start + most)
            if stop < rows.stop:
                block = blocks.block_with(stop)
                # Stop before the block, or at its end if the range starts inside it.
                stop = block.start if block.start > start else min(block.stop, rows.stop)
            yield range(start, stop)
            start = stop


def rebatch(pieces: Iterable[Batch], sizes: Iterable[int]) -> Iterator[Batch]:
    """Return the rows of batches in batches of other sizes, until either ends.

    Not collective. A batch within one of `pieces` is a view of it. `pieces` needs at least one
    batch, which may be empty.
    """
    source = iter(pieces)
    piece = next(source)
    empty = {name: array[:0].copy() for name, array in piece.items()}
    at, length = 0, num_rows(piece)
    for size in sizes:
        if 0 < size <= length - at:
            # The usual case, within one piece. The general case costs as much as a small read.
            at += size
            yield slice_batch(piece, at - size, at)
            continue
        parts = []
        missing = size
        while missing:
            if at == length:
                # The memory of an unreferenced chunk is reused for the next one.
                piece = {}
                if (following := next(source, None)) is None:
                    break
                piece, at, length = following, 0, num_rows(following)
                del following
            stop = min(at + missing, length)
            parts.append(slice_batch(piece, at, stop))
            missing -= stop - at
            at = stop
        if size and not parts:
            return
        batch = concatenate(parts) if parts else empty
        del parts
        yield batch
        del batch


def _window_reader(source: Source, schema: Schema, memory: Memory) -> WindowReader:
    columns = {name: (column.dtype, column.shape) for name, column in schema.items()}
    return WindowReader(partial(_read_into, source), columns, memory)


def _reads_into(source: Source) -> bool:
    """Return whether all parts of a source can read into existing memory."""
    if isinstance(source, Concatenated):
        return all(map(_reads_into, source.parts))
    if isinstance(source, RowRanges):
        return _reads_into(source.source)
    return hasattr(source, "read_into")


def _read_into(source: Source, rows: range, out: Batch) -> None:
    if isinstance(source, (Concatenated, RowRanges)):
        offset = 0
        for part, part_rows in source.locate(rows):
            _read_into(part, part_rows, slice_batch(out, offset, offset + len(part_rows)))
            offset += len(part_rows)
    elif hasattr(source, "read_into"):
        source.read_into(rows, out)
    else:
        for name, array in read_rows(source, rows, list(out)).items():
            np.copyto(out[name], array)
