"""`StridedCopy`: which bytes of a chunk go where in memory, as rows of regular strides."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

# Regions that need more are rare, and read in another way.
_MAX_COPIES = 4096
# Shorter rows are quicker to sort out once the whole region is in memory.
_MIN_ROW_BYTES = 16


# Every tensor has some before a load reads its first byte, and a tuple is soonest made.
class StridedCopy(NamedTuple):
    """Rows of as many bytes each, at regular distances in a file and in memory: a 2D copy.

    All numbers are bytes.
    """

    source: int
    """Where the first row begins in the data of a file; clipped ones count from the clip."""
    target: int
    """Where it goes in the memory of a tensor."""
    row_bytes: int
    num_rows: int = 1
    source_stride: int = 0
    target_stride: int = 0

    @property
    def end(self) -> int:
        """Where the last ends in the source."""
        return self.source + (self.num_rows - 1) * self.source_stride + self.row_bytes

    def clip(self, start: int, stop: int) -> Iterator[StridedCopy]:
        """Yield what of it lies in a part of the source, counted from the beginning of that."""
        if self.num_rows == 1:
            yield from self._row(0, start, stop)
            return
        ends_after = (start - self.source - self.row_bytes) // self.source_stride + 1
        first = max(0, ends_after)
        last = min(self.num_rows, -((self.source - stop) // self.source_stride)) - 1
        if first > last:
            return
        whole = range(first, last + 1)
        if self.source + first * self.source_stride < start:
            yield from self._row(first, start, stop)
            whole = whole[1:]
        cut = whole and self.source + whole[-1] * self.source_stride + self.row_bytes > stop
        if cut:
            whole = whole[:-1]
        if whole:
            yield StridedCopy(
                source=self.source + whole[0] * self.source_stride - start,
                target=self.target + whole[0] * self.target_stride,
                row_bytes=self.row_bytes,
                num_rows=len(whole),
                source_stride=self.source_stride,
                target_stride=self.target_stride,
            )
        if cut:
            yield from self._row(last, start, stop)

    def _row(self, row: int, start: int, stop: int) -> Iterator[StridedCopy]:
        source = self.source + row * self.source_stride
        low, high = max(source, start), min(source + self.row_bytes, stop)
        if low < high:
            target = self.target + row * self.target_stride + low - source
            yield StridedCopy(source=low - start, target=target, row_bytes=high - low)


class Overlap(NamedTuple):
    """What two regions of the same tensor have in common."""

    lengths: tuple[int, ...]
    source_offsets: tuple[int, ...]
    """Where it begins in the first."""
    target_offsets: tuple[int, ...]
    """Where it begins in the second."""


def overlap(
    source_offsets: Sequence[int],
    source_shape: Sequence[int],
    target_offsets: Sequence[int],
    target_shape: Sequence[int],
) -> Overlap | None:
    """Return what two regions have in common, or None. Not collective."""
    if source_offsets == target_offsets and source_shape == target_shape:
        # As it was saved, as most are.
        start = (0,) * len(source_offsets)
        return Overlap(tuple(source_shape), start, start) if all(source_shape) else None
    regions = zip(source_offsets, source_shape, target_offsets, target_shape, strict=True)
    lows, lengths = list[int](), list[int]()
    for source, source_length, target, target_length in regions:
        low = source if source > target else target
        length = min(source + source_length, target + target_length) - low
        if length <= 0:
            # Of a checkpoint of many ranks, most regions end here.
            return None
        lows.append(low)
        lengths.append(length)
    return Overlap(
        lengths=tuple(lengths),
        source_offsets=tuple(low - s for low, s in zip(lows, source_offsets, strict=True)),
        target_offsets=tuple(low - t for low, t in zip(lows, target_offsets, strict=True)),
    )


def strided_copies(
    *,
    shape: Sequence[int],
    offsets: Sequence[int],
    lengths: Sequence[int],
    source: int,
    target: int,
    target_strides: Sequence[int],
    item_bytes: int,
) -> list[StridedCopy] | None:
    """Return what copies a region of a chunk into memory, or None if it takes too many copies.

    Not collective.

    Parameters
    ----------
    shape
        Of the chunk, whose elements lie one after another.
    offsets, lengths
        Of the region in it.
    source
        Where the chunk begins in the data of its file, in bytes.
    target, target_strides
        Where the region goes in memory: its first element, and the distance of elements along each
        axis, in bytes.
    item_bytes
        Of an element.
    """
    strides = [math.prod(shape[axis + 1 :]) * item_bytes for axis in range(len(shape))]
    source += sum(o * stride for o, stride in zip(offsets, strides, strict=True))
    axes = [axis for axis, length in enumerate(lengths) if length != 1]
    length = item_bytes
    while axes and strides[axes[-1]] == target_strides[axes[-1]] == length:
        length *= lengths[axes.pop()]
    if not axes:
        return [StridedCopy(source=source, target=target, row_bytes=length)]
    *outer, inner = axes
    if math.prod(lengths[axis] for axis in outer) > _MAX_COPIES or length < _MIN_ROW_BYTES:
        return None
    return [
        StridedCopy(
            source=source + sum(n * strides[axis] for n, axis in zip(place, outer, strict=True)),
            target=target
            + sum(n * target_strides[axis] for n, axis in zip(place, outer, strict=True)),
            row_bytes=length,
            num_rows=lengths[inner],
            source_stride=strides[inner],
            target_stride=target_strides[inner],
        )
        for place in itertools.product(*(range(lengths[axis]) for axis in outer))
    ]
