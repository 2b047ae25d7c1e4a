"""`DataIterator`: one rank's part of a dataset, epoch after epoch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from hpctrain.data.dataset import Dataset, check_batch_size, rows_of
from hpctrain.data.formats import Batch, BatchFormat, check_format, to_format
from hpctrain.data.schema import Schema
from hpctrain.data.split import Tail, Taken, batch_sizes, check_tail, left_over, part_of
from hpctrain.data.stream import read_ranges, rebatch

if TYPE_CHECKING:
    from collections.abc import Mapping


class DataIterator:
    """One rank's part of a dataset.

    Every ``iter_batches()`` is an epoch. All ranks get the same number of batches.

    Parameters
    ----------
    dataset
        Of which this is a part.
    rank, world_size
        Which part, of how many.
    tail
        What becomes of rows that do not fill a batch on every rank; see `Dataset.shard`.
    """

    def __init__(
        self, dataset: Dataset, *, rank: int, world_size: int, tail: Tail = "uneven"
    ) -> None:
        check_tail(tail)
        self._dataset = dataset
        self._rank = rank
        self._world_size = world_size
        self._tail = tail
        self._epoch = 0
        self._before: tuple[Taken, ...] = ()
        self._now: Taken | None = None

    def __repr__(self) -> str:
        """Return which part of what this is."""
        return f"DataIterator(rank {self._rank} of {self._world_size}, {self._dataset!r})"

    def iter_batches(
        self,
        *,
        batch_size: int = 256,
        batch_format: BatchFormat = "numpy",
    ) -> Iterator[Any]:
        """Return the batches of the next epoch, or the rest of the one that was resumed.

        Not collective, but every rank must give the same arguments.

        Parameters
        ----------
        batch_size
            Rows of a batch of this rank.
        batch_format
            "numpy" gives a dict of arrays that have a row per element, "pandas" a data frame,
            "pyarrow" a table.
        """
        check_format(batch_format)
        check_batch_size(batch_size)
        return (to_format(batch, batch_format) for batch in self._epoch_batches(batch_size))

    def iter_rows(self) -> Iterator[dict[str, Any]]:
        """Return the rows of the next epoch, each a dict. Not collective."""
        for batch in self.iter_batches():
            yield from rows_of(batch)

    @property
    def num_rows(self) -> int:
        """Rows of this rank's part of an epoch, before filters."""
        return sum(map(len, self._part(())))

    def schema(self) -> Schema:
        """Return names, types and shapes of the columns. Not collective."""
        return self._dataset.schema()

    def materialize(self) -> Dataset:
        """Return this rank's part, in order, read into memory. Not collective."""
        return self._dataset.take_ranges(self._part(())).materialize()

    def state_dict(self) -> dict[str, Any]:
        """Return where in which epoch this is, in a few numbers; the same on every rank.

        Not collective.
        """
        taken = [*self._before, *([self._now] if self._now else [])]
        return {"epoch": self._epoch, "taken": [asdict(some) for some in taken]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on after the batches that had been given out, with as many ranks as there are now.

        Not collective.
        """
        self._epoch = state["epoch"]
        self._before = tuple(Taken(**some) for some in state["taken"])
        self._now = None

    def _part(self, before: tuple[Taken, ...]) -> list[range]:
        left = left_over(self._dataset.source.num_rows, before)
        return part_of(left, rank=self._rank, world_size=self._world_size)

    def _epoch_batches(self, batch_size: int) -> Iterator[Batch]:
        if self._now is not None:
            self._epoch, self._before = self._epoch + 1, ()
        part = self._part(self._before)
        left = left_over(self._dataset.source.num_rows, self._before)
        sizes = batch_sizes(
            sum(map(len, left)),
            rank=self._rank,
            world_size=self._world_size,
            batch_size=batch_size,
            tail=self._tail,
        )
        dataset = self._dataset
        pieces = read_ranges(dataset.source, part, dataset.columns_read)
        for number, batch in enumerate(rebatch(pieces, sizes), start=1):
            self._now = Taken(self._world_size, batch_size, number, self._tail)
            yield dataset.apply(batch)
