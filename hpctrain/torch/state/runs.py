"""Which bytes of a piece of a tensor go where in memory: as few runs as there can be."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

# Of runs that are regular; boxes that need more are rare, and read in another way.
_MAX_GROUPS = 4096
# Shorter ones are quicker to sort out once the whole box is in memory.
_MIN_RUN_BYTES = 16


# Every tensor has some before a load reads its first byte, and a tuple is soonest made.
class Runs(NamedTuple):
    """Some runs of bytes of the same length, at regular distances. All numbers are bytes."""

    source: int
    """Where the first begins in the data of a file; clipped runs count from where that is."""
    target: int
    """Where it goes in the memory of a tensor."""
    length: int
    num_runs: int = 1
    """How many runs."""
    source_step: int = 0
    target_step: int = 0

    @property
    def end(self) -> int:
        """Where the last ends in the source."""
        return self.source + (self.num_runs - 1) * self.source_step + self.length

    def clip(self, start: int, stop: int) -> Iterator[Runs]:
        """Yield what of the runs lies in a part of the source, counted from its beginning."""
        if self.num_runs == 1:
            yield from self._row(0, start, stop)
            return
        ends_after = (start - self.source - self.length) // self.source_step + 1
        first = max(0, ends_after)
        last = min(self.num_runs, -((self.source - stop) // self.source_step)) - 1
        if first > last:
            return
        whole = range(first, last + 1)
        if self.source + first * self.source_step < start:
            yield from self._row(first, start, stop)
            whole = whole[1:]
        cut = whole and self.source + whole[-1] * self.source_step + self.length > stop
        if cut:
            whole = whole[:-1]
        if whole:
            yield Runs(
                source=self.source + whole[0] * self.source_step - start,
                target=self.target + whole[0] * self.target_step,
                length=self.length,
                num_runs=len(whole),
                source_step=self.source_step,
                target_step=self.target_step,
            )
        if cut:
            yield from self._row(last, start, stop)

    def _row(self, row: int, start: int, stop: int) -> Iterator[Runs]:
        source = self.source + row * self.source_step
        low, high = max(source, start), min(source + self.length, stop)
        if low < high:
            target = self.target + row * self.target_step + low - source
            yield Runs(source=low - start, target=target, length=high - low)


class Overlap(NamedTuple):
    """What two boxes of the same tensor have in common."""

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
    """Return what two boxes have in common, or None. Not collective."""
    if source_offsets == target_offsets and source_shape == target_shape:
        # As it was saved, as most are.
        start = (0,) * len(source_offsets)
        return Overlap(tuple(source_shape), start, start) if all(source_shape) else None
    lows = [max(s, t) for s, t in zip(source_offsets, target_offsets, strict=True)]
    lengths = [
        min(s + m, t + n) - low
        for s, m, t, n, low in zip(
            source_offsets, source_shape, target_offsets, target_shape, lows, strict=True
        )
    ]
    if any(length <= 0 for length in lengths):
        return None
    return Overlap(
        lengths=tuple(lengths),
        source_offsets=tuple(low - s for low, s in zip(lows, source_offsets, strict=True)),
        target_offsets=tuple(low - t for low, t in zip(lows, target_offsets, strict=True)),
    )


def runs_of(
    *,
    shape: Sequence[int],
    offsets: Sequence[int],
    lengths: Sequence[int],
    source: int,
    target: int,
    target_strides: Sequence[int],
    item_bytes: int,
) -> list[Runs] | None:
    """Return the runs that copy a box of a piece into memory, or None if they are too many.

    Not collective.

    Parameters
    ----------
    shape
        Of the piece, whose elements lie one after another.
    offsets, lengths
        Of the box in it.
    source
        Where the piece begins in the data of its file, in bytes.
    target, target_strides
        Where the box goes in memory: its first element, and the distance of elements along each
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
        return [Runs(source=source, target=target, length=length)]
    *outer, inner = axes
    if math.prod(lengths[axis] for axis in outer) > _MAX_GROUPS or length < _MIN_RUN_BYTES:
        return None
    return [
        Runs(
            source=source + sum(n * strides[axis] for n, axis in zip(place, outer, strict=True)),
            target=target
            + sum(n * target_strides[axis] for n, axis in zip(place, outer, strict=True)),
            length=length,
            num_runs=lengths[inner],
            source_step=strides[inner],
            target_step=target_strides[inner],
        )
        for place in itertools.product(*(range(lengths[axis]) for axis in outer))
    ]
