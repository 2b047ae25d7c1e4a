"""The rows of a source in another order, which is the same each time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hpctrain.data.formats import Batch, concatenate
from hpctrain.data.order import Shuffle
from hpctrain.data.schema import Schema
from hpctrain.data.source import Blocks, Source
from hpctrain.data.stream import Mixing, tasks_shuffled
from hpctrain.data.window import Memory


@dataclass(frozen=True, kw_only=True)
class ShuffledRows:
    """A source whose row at a position is another one, by a seed."""

    source: Source
    mixing: Mixing

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
        return self.mixing.order(self.source.num_rows, epoch=0)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the order, which follows from the rest."""
        return {"source": self.source, "mixing": self.mixing}

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
