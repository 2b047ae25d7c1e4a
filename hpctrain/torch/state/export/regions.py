"""Where the bytes of a chunk go in the whole tensor, and how a chunk is cut into small ones."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hpctrain.torch.state.layout.strided_copy import StridedCopy

Region = tuple[tuple[int, ...], tuple[int, ...]]
"""Offsets and lengths of a region."""


@dataclass(frozen=True, kw_only=True)
class Placement:
    """How the bytes of a chunk lie in its tensor.

    Sizes are bytes: of each axis how many steps the chunk has, and how far one is in the tensor.
    """

    lengths: tuple[int, ...]
    strides: tuple[int, ...]
    target: int
    """Where the first byte goes."""

    @staticmethod
    def of(
        *, shape: Sequence[int], offsets: Sequence[int], whole: Sequence[int], item_bytes: int
    ) -> Placement:
        """Return the placement of a chunk, with as few axes as will do. Not collective.

        Parameters
        ----------
        shape, offsets
            Of the chunk.
        whole
            Shape of the tensor.
        item_bytes
            Of an element, whose bytes are the last axis: an element may be cut by a block's end.
        """
        lengths, strides = [item_bytes], [1]
        target, stride = 0, item_bytes
        is_full = True
        for length, offset, size in zip(
            reversed(shape), reversed(offsets), reversed(whole), strict=True
        ):
            target += offset * stride
            if is_full:
                lengths[0] *= length
            elif length != 1:
                lengths.insert(0, length)
                strides.insert(0, stride)
            # Rows of what is not cut lie one after the other.
            is_full = length == size and strides[0] * lengths[0] == stride * size
            stride *= size
        return Placement(lengths=tuple(lengths), strides=tuple(strides), target=target)

    def copies(self, first: int, last: int) -> Iterator[StridedCopy]:
        """Give what copies some bytes of the chunk; sources count from `first`. Not collective."""
        inner = self.lengths[-1]
        for offsets, lengths in regions(self.lengths, first, last):
            *outer, rows, row_bytes = (1, *lengths) if len(lengths) == 1 else lengths
            target = self.target + _dot(offsets, self.strides)
            source = _dot(offsets, _steps(self.lengths)) - first
            row_stride = self.strides[-2] if len(lengths) > 1 else 0
            for place in itertools.product(*map(range, outer)):
                yield StridedCopy(
                    source=source,
                    target=target + _dot(place, self.strides[: len(place)]),
                    row_bytes=row_bytes,
                    num_rows=rows,
                    source_stride=inner,
                    target_stride=row_stride,
                )
                source += rows * row_bytes


def regions(shape: Sequence[int], first: int, last: int) -> Iterator[Region]:
    """Give the regions that together are the elements from `first` to `last`, in order.

    Not collective.
    """
    if first >= last:
        return
    if not shape:
        yield (), ()
        return
    rest = shape[1:]
    row = math.prod(rest)
    begin, end = -(-first // row), last // row
    if begin > end:
        yield from _in_row(end, rest, first - end * row, last - end * row)
        return
    if first < begin * row:
        yield from _in_row(begin - 1, rest, first - (begin - 1) * row, row)
    if begin < end:
        yield (begin, *(0 for _ in rest)), (end - begin, *rest)
    yield from _in_row(end, rest, 0, last - end * row)


def slabs(shape: Sequence[int], *, item_bytes: int, most_bytes: int) -> Iterator[Region]:
    """Give regions of at most so many bytes that together are all elements, in order.

    Not collective. The elements of each lie one after the other. Of nothing there is one region.
    """
    row_bytes = math.prod(shape[1:]) * item_bytes
    if not shape or shape[0] * row_bytes <= most_bytes:
        yield (0,) * len(shape), tuple(shape)
    elif row_bytes > most_bytes:
        for index in range(shape[0]):
            for offsets, lengths in slabs(shape[1:], item_bytes=item_bytes, most_bytes=most_bytes):
                yield (index, *offsets), (1, *lengths)
    else:
        rows = most_bytes // row_bytes
        for start in range(0, shape[0], rows):
            length = min(rows, shape[0] - start)
            yield (start, *(0 for _ in shape[1:])), (length, *shape[1:])


def _in_row(index: int, rest: Sequence[int], first: int, last: int) -> Iterator[Region]:
    for offsets, lengths in regions(rest, first, last):
        yield (index, *offsets), (1, *lengths)


def _steps(lengths: Sequence[int]) -> list[int]:
    return [math.prod(lengths[axis + 1 :]) for axis in range(len(lengths))]


def _dot(places: Sequence[int], strides: Sequence[int]) -> int:
    return sum(place * stride for place, stride in zip(places, strides, strict=True))
