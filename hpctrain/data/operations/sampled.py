"""A random sample of the rows of a source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from hpctrain.data.batch import Batch, concatenate
from hpctrain.data.schema import Schema
from hpctrain.data.source import Blocks, Source, read_rows
from hpctrain.data.stream import windows


@dataclass(frozen=True, kw_only=True)
class SampledRows:
    """A share of the rows of a source, in their order; the seed alone decides which."""

    source: Source
    fraction: float
    seed: int

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is computed from the rest."""
        return {name: value for name, value in vars(self).items() if name != "_chosen"}

    @cached_property
    def _chosen(self) -> np.ndarray:
        """Rows of the source, in order."""
        drawn = np.random.default_rng(self.seed).random(self.source.num_rows)
        return np.flatnonzero(drawn < self.fraction)

    @property
    def num_rows(self) -> int:
        """Number of rows that were drawn."""
        return len(self._chosen)

    @property
    def schema(self) -> Schema:
        """Columns."""
        return self.source.schema

    @property
    def unit_rows(self) -> int:
        """About how many rows are drawn from a unit of the source."""
        return max(1, round(self.source.unit_rows * self.fraction))

    def blocks(self) -> Blocks:
        """Return a block of the drawn rows for each block of the source. Not collective."""
        stops = [block.stop for block in self.source.blocks()]
        sizes = np.diff(np.searchsorted(self._chosen, [0, *stops]))
        return Blocks([(int(size), int(size)) for size in sizes])

    def read(self, rows: range, columns: Sequence[str] | None) -> Batch:
        """Return rows, in order. Not collective."""
        if not rows:
            return self.source.read(range(0), columns)
        chosen = self._chosen[rows.start : rows.stop]
        span = range(int(chosen[0]), int(chosen[-1]) + 1)
        pieces = []
        # The span is 1 / fraction times as large as what is drawn from it.
        for window in windows(self.source, [span], self.schema.select(columns).row_bytes):
            first, last = np.searchsorted(chosen, (window.start, window.stop))
            if first < last:
                batch = read_rows(self.source, window, columns)
                drawn = chosen[first:last] - window.start
                pieces.append({name: array[drawn] for name, array in batch.items()})
        return concatenate(pieces)
