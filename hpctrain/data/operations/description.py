"""`Description`: where rows come from and what is done to them, which every operation adds to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from itertools import repeat
from threading import Lock
from typing import Any, TypeVar

from hpctrain.data.batch import Batch, concatenate, num_rows
from hpctrain.data.memory import MemorySource
from hpctrain.data.prefetch import prefetch, spare_threads
from hpctrain.data.schema import Schema
from hpctrain.data.source import Source, memory_bytes, read_rows
from hpctrain.data.steps import MapBatches, Step, check_kept
from hpctrain.data.stream import Task, rebatch, tasks_in_order
from hpctrain.data.window import Memory
from hpctrain.errors import ConfigError

DatasetT = TypeVar("DatasetT", bound="Description")


@dataclass(frozen=True, eq=False)
class Description:
    """A source and the steps after it; nothing is read yet."""

    source: Source
    """Where rows come from."""
    steps: tuple[Step, ...] = ()
    """Transforms batches of them."""
    columns_read: tuple[str, ...] | None = None
    """Columns that are read from the source; None is all."""

    def __repr__(self) -> str:
        """Return rows and columns of the source, and the number of steps."""
        steps = f", {len(self.steps)} steps" if self.steps else ""
        return f"Dataset({self.source.num_rows} rows, {self.read_schema}{steps})"

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what follows from the rest."""
        return {name: value for name, value in vars(self).items() if name != "keeps_rows"}

    @cached_property
    def keeps_rows(self) -> bool:
        """Whether as many rows come out as are read; a step that does not say is tried on some."""
        known = [step.keeps_rows for step in self.steps]
        return all(known) if None not in known else False not in known and self._keeps_first_rows()

    def _keeps_first_rows(self) -> bool:
        rows = range(min(2, self.source.num_rows))
        try:
            return num_rows(self._applied(read_rows(self.source, rows, self.columns_read))) == len(
                rows
            )
        except Exception:
            # It fails again, with its place, where rows are wanted of it.
            return True

    @property
    def num_rows(self) -> int:
        """Number of rows.

        Raises
        ------
        ConfigError
            If only a pass over the data can say it, as after `filter`: `count` makes one.
        """
        if not self.keeps_rows:
            raise ConfigError(
                "num_rows: how many rows filter() or map_batches(keeps_rows=False) leave is known "
                "after a pass over the data: count() and materialize() make one."
            )
        return self.source.num_rows

    @property
    def memory_bytes(self) -> int:
        """Bytes that pickle with the dataset because they are in memory and not in files."""
        return memory_bytes(self.source)

    @property
    def is_plain(self) -> bool:
        """Whether no column has categories, for certain: steps may give it some."""
        types = (column.dtype for column in self.read_schema.values())
        return not self.steps and not any(dtype.metadata for dtype in types)

    @property
    def is_instant(self) -> bool:
        """Whether nothing is gained by reading ahead, as what is in memory needs no reading."""
        return isinstance(self.source, MemorySource) and not self.steps

    def columns(self) -> list[str]:
        """Return the names of the columns, in order. Not collective."""
        return self.schema().names

    @property
    def read_schema(self) -> Schema:
        """Columns that are read, before any step."""
        return self.source.schema.select(self.columns_read)

    def schema(self) -> Schema:
        """Return names, types and shapes of the columns.

        Not collective. Steps are tried on the first rows.
        """
        if not self.steps:
            return self.read_schema
        rows = range(min(2, self.source.num_rows))
        made = self.assuming_nothing().apply(read_rows(self.source, rows, self.columns_read))
        if not made:
            # What a function makes of a row is not known before a filter has left it one.
            made = next((piece for piece in self.all_pieces() if piece), made)
        return Schema.of(made)

    def count(self) -> int:
        """Return the number of rows; makes a pass over the data where nothing else tells it.

        Not collective.
        """
        return self.count_rows([range(self.source.num_rows)])

    def count_rows(self, ranges: Sequence[range]) -> int:
        """Return the number of rows that become of some of the source. Not collective."""
        if all(_surely_keeps_rows(step) for step in self.steps):
            return sum(map(len, ranges))
        return sum(map(num_rows, self.assuming_nothing().pieces(ranges)))

    def apply(self, batch: Batch) -> Batch:
        """Return what all steps make of rows of the source. Not collective."""
        made = self._applied(batch)
        if self.keeps_rows:
            open_steps = [step for step in self.steps if step.keeps_rows is None]
            check_kept(batch, made, ", ".join(map(str, open_steps)))
        return made

    def _applied(self, batch: Batch) -> Batch:
        return reduce(lambda changed, step: step(changed), self.steps, batch)

    def typed_batches(self, rows: range, batch_size: int) -> Iterator[Batch]:
        """Return rows in batches of arrays whose types have their categories. Not collective."""
        return rebatch(self.pieces([rows], batch_size=batch_size), repeat(batch_size))

    def with_steps(self, tasks: Iterable[Task]) -> Iterator[Task]:
        """Return tasks that also apply the steps. Not collective."""
        if not self.steps:
            return iter(tasks)
        # Several threads read, but a user's function need not be thread-safe.
        one_at_a_time = Lock()
        return (partial(self._read_and_apply, task, one_at_a_time) for task in tasks)

    def _read_and_apply(self, task: Task, one_at_a_time: Lock) -> Batch:
        batch = task()
        with one_at_a_time:
            return self.apply(batch)

    def all_rows(self) -> Batch:
        """Return all rows, their types with their categories. Not collective."""
        return concatenate(list(self.all_pieces()))

    def all_pieces(self) -> Iterator[Batch]:
        """Return all rows in chunks, for any functions that change their number. Not collective."""
        return self.assuming_nothing().pieces([range(self.source.num_rows)])

    def assuming_nothing(self: DatasetT) -> DatasetT:
        """Return the dataset without what is only assumed of the number of rows.

        Not collective. It is for passes over all rows. Where ranks share the rows, their number
        has to be known.
        """
        steps = [
            replace(step, keeps_rows=False)
            if isinstance(step, MapBatches) and not _surely_keeps_rows(step)
            else step
            for step in self.steps
        ]
        return replace(self, steps=tuple(steps))

    @property
    def has_classes(self) -> bool:
        """Whether classes change batches, of which it is assumed that they keep the rows."""
        return any(isinstance(step, MapBatches) and step.call.is_class for step in self.steps)

    def with_step(self: DatasetT, step: Step) -> DatasetT:
        """Return a dataset with another step. Not collective."""
        return replace(self, steps=(*self.steps, step))

    def of_source(self: DatasetT, source: Source) -> DatasetT:
        """Return a dataset of another source, without steps. Not collective."""
        return replace(self, source=source, steps=(), columns_read=None)

    def in_memory(self: DatasetT, batch: Batch) -> DatasetT:
        """Return a dataset of rows that have been read. Not collective."""
        return self.of_source(MemorySource(arrays=batch))

    def pieces(self, ranges: Sequence[range], *, batch_size: int = 1) -> Iterator[Batch]:
        """Return rows of the source, with steps, in pieces as large as is read at once.

        Not collective. There is one at least, if only without rows.
        """
        tasks = tasks_in_order(
            self.source, ranges, self.columns_read, memory=Memory(), batch_size=batch_size
        )
        return prefetch(self.with_steps(tasks), threads=0 if self.is_instant else spare_threads())


def _surely_keeps_rows(step: Step) -> bool:
    """Return whether a step says itself that it keeps the number of rows.

    Of a class it is only assumed: it is not constructed, with its model, to try it on some rows.
    """
    return step.keeps_rows is True and not (isinstance(step, MapBatches) and step.call.is_class)
