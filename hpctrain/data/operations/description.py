"""`Description`: a source of rows and the steps after it, to which every operation adds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from itertools import repeat
from threading import Lock
from typing import Any, TypeVar

from hpctrain.data.batch import Batch, concatenate, num_rows
from hpctrain.data.memory import MemorySource
from hpctrain.data.prefetch import clock_stopped, prefetch, spare_threads
from hpctrain.data.schema import Schema
from hpctrain.data.source import Source, memory_bytes, read_rows
from hpctrain.data.steps import MapBatches, Step, check_kept
from hpctrain.data.stream import Task, bytes_of_task, rebatch, tasks_in_order
from hpctrain.data.window import Memory
from hpctrain.errors import ConfigError

DatasetT = TypeVar("DatasetT", bound="Description")


@dataclass(frozen=True, eq=False)
class Description:
    """A source and the steps after it; nothing is read yet."""

    source: Source
    """Where rows come from."""
    steps: tuple[Step, ...] = ()
    """Transformations of batches of these rows, in order."""
    columns_read: tuple[str, ...] | None = None
    """Columns that are read from the source; None is all."""

    def __repr__(self) -> str:
        """Return rows and columns of the source, and the number of steps."""
        steps = f", {len(self.steps)} steps" if self.steps else ""
        return f"Dataset({self.source.num_rows} rows, {self.read_schema}{steps})"

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is computed from the rest."""
        return {name: value for name, value in vars(self).items() if name != "keeps_rows"}

    @cached_property
    def keeps_rows(self) -> bool:
        """Whether steps keep the number of rows; unknown ones are tried on the first rows."""
        known = [step.keeps_rows for step in self.steps]
        return all(known) if None not in known else False not in known and self._keeps_first_rows()

    def _keeps_first_rows(self) -> bool:
        rows = range(min(2, self.source.num_rows))
        try:
            return num_rows(self._applied(read_rows(self.source, rows, self.columns_read))) == len(
                rows
            )
        except Exception:
            # The step fails again, with a better message, when its rows are read.
            return True

    @property
    def num_rows(self) -> int:
        """Number of rows.

        Raises
        ------
        ConfigError
            If it takes a pass over the data, as after `filter`: `count` makes one.
        """
        if not self.keeps_rows:
            raise ConfigError(
                "num_rows: the number of rows after filter() or map_batches(keeps_rows=False) is "
                "unknown before a pass over the data. Call count() or materialize()."
            )
        return self.source.num_rows

    @property
    def memory_bytes(self) -> int:
        """Bytes in memory, not in files, which are pickled with the dataset."""
        return memory_bytes(self.source)

    @property
    def is_plain(self) -> bool:
        """Whether certainly no column has categories; False after steps, which may add some."""
        types = (column.dtype for column in self.read_schema.values())
        return not self.steps and not any(dtype.metadata for dtype in types)

    @property
    def is_instant(self) -> bool:
        """Whether reading ahead gains nothing, because all rows are in memory, without steps."""
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
            # A filter dropped these rows: look for the first rows that it keeps.
            made = next((piece for piece in self.all_pieces() if piece), made)
        return Schema.of_read(made)

    def count(self) -> int:
        """Return the number of rows; makes a pass over the data if steps may change it.

        Not collective.
        """
        return self.count_rows([range(self.source.num_rows)])

    def count_rows(self, ranges: Sequence[range]) -> int:
        """Return the number of rows after the steps of some source rows. Not collective."""
        if all(_surely_keeps_rows(step) for step in self.steps):
            return sum(map(len, ranges))
        return sum(map(num_rows, self.assuming_nothing().pieces(ranges)))

    def apply(self, batch: Batch) -> Batch:
        """Return the result of all steps for rows of the source. Not collective."""
        made = self._applied(batch)
        if self.keeps_rows:
            open_steps = [step for step in self.steps if step.keeps_rows is None]
            check_kept(batch, made, ", ".join(map(str, open_steps)))
        return made

    def _applied(self, batch: Batch) -> Batch:
        return reduce(lambda changed, step: step(changed), self.steps, batch)

    def typed_batches(self, rows: range, batch_size: int) -> Iterator[Batch]:
        """Return rows in batches of arrays whose types keep their categories. Not collective."""
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
        with clock_stopped(), one_at_a_time:
            return self.apply(batch)

    def all_rows(self) -> Batch:
        """Return all rows; their types keep their categories. Not collective."""
        return concatenate(list(self.all_pieces()))

    def all_pieces(self) -> Iterator[Batch]:
        """Return all rows in chunks; steps may change their number. Not collective."""
        return self.assuming_nothing().pieces([range(self.source.num_rows)])

    def assuming_nothing(self: DatasetT) -> DatasetT:
        """Return the dataset without the assumption that its steps keep the number of rows.

        Not collective. For passes over all rows. When ranks share the rows, their number must be
        known.
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
        """Whether classes transform batches; they are assumed to keep the number of rows."""
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
        """Return rows of the source, after the steps, in batches as large as one read.

        Not collective. There is at least one, which may be empty.
        """
        tasks = tasks_in_order(
            self.source, ranges, self.columns_read, memory=Memory(), batch_size=batch_size
        )
        bytes_each = bytes_of_task(self.source, self.columns_read)
        threads = 0 if self.is_instant else spare_threads(bytes_each)
        return prefetch(self.with_steps(tasks), threads=threads, bytes_each=bytes_each)


def _surely_keeps_rows(step: Step) -> bool:
    """Return whether a step is known to keep the number of rows.

    A class is only assumed to: trying it on some rows would construct it, with its model.
    """
    return step.keeps_rows is True and not (isinstance(step, MapBatches) and step.call.is_class)
