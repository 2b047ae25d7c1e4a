"""Rows of a source as pieces that are read in windows large enough for a parallel filesystem."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from hpctrain.data.formats import Batch, concatenate, num_rows, slice_batch
from hpctrain.data.source import Blocks, Source

WINDOW_BYTES = 32 * 2**20
"""Bytes that are read at once, in whole blocks; one block at least."""


def windows(source: Source, ranges: Sequence[range], row_bytes: int) -> Iterator[range]:
    """Return ranges cut into windows that end where blocks end. Not collective."""
    blocks = source.blocks()
    most = max(1, WINDOW_BYTES // max(row_bytes, 1))
    for rows in ranges:
        start = rows.start
        while start < rows.stop:
            stop = min(rows.stop, start + most)
            if stop < rows.stop:
                block = block_with(blocks, stop)
                # Back to the beginning of the block, or on to its end if it is larger than that.
                stop = block.start if block.start > start else min(block.stop, rows.stop)
            yield range(start, stop)
            start = stop


def block_with(blocks: Sequence[range], row: int) -> range:
    """Return the block that has a row. Not collective."""
    if isinstance(blocks, Blocks):
        found: range = blocks[blocks.index_of(row)]
        return found
    return next(block for block in blocks if row in block)


def read_ranges(
    source: Source, ranges: Sequence[range], columns: Sequence[str] | None
) -> Iterator[Batch]:
    """Return the rows of ranges, in order, in pieces of the source's own choice. Not collective."""
    row_bytes = source.schema.select(columns).row_bytes
    for window in windows(source, ranges, row_bytes):
        yield source.read(window, columns)
    if not any(map(len, ranges)):
        # Columns and types, for a batch without rows.
        yield source.read(range(0), columns)


def rebatch(pieces: Iterable[Batch], sizes: Iterable[int]) -> Iterator[Batch]:
    """Return the rows of pieces in batches of the sizes wanted, until either ends.

    Not collective. What lies in one piece is a view of it.
    """
    source = iter(pieces)
    first = next(source, None)
    if first is None:
        return
    source = chain([first], source)
    empty = slice_batch(first, 0, 0)
    held: list[Batch] = []
    available = 0
    for size in sizes:
        while available < size:
            piece = next(source, None)
            if piece is None:
                break
            if num_rows(piece):
                held.append(piece)
                available += num_rows(piece)
        wanted, taken = min(size, available), []
        if size and not wanted:
            return
        available -= wanted
        while wanted:
            piece = held[0]
            length = num_rows(piece)
            if length > wanted:
                taken.append(slice_batch(piece, 0, wanted))
                held[0] = slice_batch(piece, wanted, length)
                wanted = 0
            else:
                taken.append(held.pop(0))
                wanted -= length
        yield concatenate(taken) if taken else empty
