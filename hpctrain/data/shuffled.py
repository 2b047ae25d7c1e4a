"""The rows of a source in another order, the same each time or a new one each epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from hpctrain.data.batch import Batch, concatenate
from hpctrain.data.order import Shuffle, permutation
from hpctrain.data.schema import Schema
from hpctrain.data.source import Blocks, RowRanges, Source
from hpctrain.data.stream import Mixing, tasks_shuffled
from hpctrain.data.window import Memory


@dataclass(frozen=True, kw_only=True)
class ShuffledRows:
    """The rows of a source, shuffled by a seed."""

    source: Source
    mixing: Mixing
    each_epoch: bool = False
    """Whether each epoch has its own order."""
    epoch: int = 0
    """The epoch whose order the rows have."""

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return self.source.num_rows

    @property
    def schema(self) -> Schema:
        """Columns."""
        return self.source.schema

    @property
    def unit_rows(self) -> int:
        """Rows of a window."""
        return self._order.window_rows or 1

    @cached_property
    def _order(self) -> Shuffle:
        return self.mixing.order(self.source.num_rows, epoch=self.epoch)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the order, which is computed from the rest."""
        state: dict[str, Any] = {"source": self.source, "mixing": self.mixing}
        return {**state, "each_epoch": True, "epoch": self.epoch} if self.each_epoch else state

    def at_epoch(self, epoch: int) -> ShuffledRows:
        """Return the rows in the order of an epoch. Not collective."""
        return replace(self, epoch=epoch) if self.each_epoch else self

    def blocks(self) -> Blocks:
        """Return the windows. Not collective."""
        return Blocks([(self.num_rows, self.unit_rows)])

    def read(self, rows: range, columns: Sequence[str] | None) -> Batch:
        """Return rows, in order. Not collective."""
        pieces: Iterator[Batch] = (
            task()
            for task in tasks_shuffled(self.source, self._order, [rows], columns, memory=Memory())
        )
        return concatenate(list(pieces))


_FEWEST_PIECES = 100
_MOST_PIECES = 1000


@dataclass(frozen=True, kw_only=True)
class ShuffledPieces(RowRanges):
    """Blocks of a source in another order each epoch; `ranges` has that of epoch 0."""

    seed: int

    def at_epoch(self, epoch: int) -> RowRanges:
        """Return the blocks in the order of an epoch. Not collective."""
        pieces = sorted(self.ranges, key=lambda piece: piece.start)
        return RowRanges(source=self.source, ranges=in_order_of(pieces, self.seed, epoch))


def in_order_of(pieces: Sequence[range], seed: int, epoch: int = 0) -> tuple[range, ...]:
    """Return ranges in an order that depends on a seed and an epoch alone. Not collective."""
    return tuple(pieces[at] for at in permutation(len(pieces), (seed, epoch, 0)).tolist())


def pieces_of(source: Source) -> list[range]:
    """Return the blocks of a source, merged if there are many or split if there are few.

    Not collective. There are at most about a thousand, because all of them are pickled; and at
    least a hundred if rows can be read one by one, so that a small source is shuffled too.
    """
    blocks = source.blocks()
    several = max(-(-len(blocks) // _MOST_PIECES), 1)
    most = max(-(-source.num_rows // _FEWEST_PIECES), 1)
    whole = source.unit_rows > 1 or len(blocks) >= _FEWEST_PIECES
    pieces = []
    for at in range(0, len(blocks), several):
        start, stop = blocks[at].start, blocks[min(at + several, len(blocks)) - 1].stop
        step = stop - start if whole else most
        pieces += [range(first, min(first + step, stop)) for first in range(start, stop, step)]
    return pieces
