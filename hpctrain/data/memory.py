"""Rows in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpctrain.data.batch import Batch, num_rows, slice_batch
from hpctrain.data.schema import Schema
from hpctrain.data.source import SingleRows


@dataclass(frozen=True, kw_only=True, eq=False)
class MemorySource(SingleRows):
    """Arrays that have a row per element; reads return views of them."""

    arrays: Batch

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return num_rows(self.arrays)

    @property
    def schema(self) -> Schema:
        """Columns."""
        return Schema.of(self.arrays)

    @property
    def memory_bytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in self.arrays.values())

    def read(self, rows: range, columns: Sequence[str] | None) -> Batch:
        """Return rows, in order. Not collective."""
        names = self.arrays if columns is None else columns
        batch = slice_batch({n: self.arrays[n] for n in names}, rows.start, rows.stop)
        for view in batch.values():
            # A step that writes into its batch would change the dataset.
            view.flags.writeable = False
        return batch
