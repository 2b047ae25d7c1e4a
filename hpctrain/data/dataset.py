"""`Dataset`: rows of files or of memory, and what is to be done to them; nothing is read yet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import chain, repeat
from numbers import Integral
from os import PathLike
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from hpctrain.data.categories import plain
from hpctrain.data.formats import (
    Batch,
    BatchFormat,
    check_batch_size,
    check_format,
    concatenate,
    num_rows,
    rows_of,
    slice_batch,
    to_arrow,
    to_format,
    to_pandas,
)
from hpctrain.data.memory import MemorySource
from hpctrain.data.passes import Passes, passes
from hpctrain.data.prefetch import prefetch, spare_threads
from hpctrain.data.schema import Schema, check_columns
from hpctrain.data.source import RowRanges, Source, check_range, memory_bytes, read_rows, take_rows
from hpctrain.data.steps import Drop, Filter, MapBatches, Select, Step
from hpctrain.data.stream import Task, choose_mixing, rebatch, tasks_in_order
from hpctrain.data.window import Memory
from hpctrain.errors import ConfigError

if TYPE_CHECKING:
    from hpctrain.data.iterator import DataIterator
    from hpctrain.data.split import Tail


@dataclass(frozen=True, eq=False)
class Dataset:
    """Rows with named columns, read when they are asked for.

    It is a description: paths, row ranges and functions. It pickles to kilobytes, whatever the size
    of its files, and each rank of a run reads its own part. Made by the functions of
    `hpctrain.data`; its methods return other datasets and change nothing.
    """

    source: Source
    """Where rows come from."""
    steps: tuple[Step, ...] = ()
    """What is done to batches of them."""
    columns_read: tuple[str, ...] | None = None
    """Columns that are read from the source; None is all."""

    def __repr__(self) -> str:
        """Return rows and columns of the source, and the number of steps."""
        steps = f", {len(self.steps)} steps" if self.steps else ""
        return f"Dataset({self.source.num_rows} rows, {self.read_schema}{steps})"

    @property
    def keeps_rows(self) -> bool:
        """Whether as many rows come out as are read."""
        return all(step.keeps_rows for step in self.steps)

    @property
    def num_rows(self) -> int:
        """Number of rows.

        Raises
        ------
        ConfigError
            If only a pass over the data can say it, as after `filter`: `count` makes one.
        """
        self._check_rows_known("num_rows")
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

    @property
    def columns(self) -> list[str]:
        """Names of the columns, in order."""
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
        return Schema.of(self.apply(read_rows(self.source, rows, self.columns_read)))

    def count(self) -> int:
        """Return the number of rows; makes a pass over the data where nothing else tells it.

        Not collective.
        """
        if self.keeps_rows:
            return self.source.num_rows
        return sum(num_rows(piece) for piece in self._pieces([range(self.source.num_rows)]))

    def apply(self, batch: Batch) -> Batch:
        """Return what all steps make of rows of the source. Not collective."""
        return reduce(lambda changed, step: step(changed), self.steps, batch)

    def map_batches(
        self,
        function: Callable[..., Any],
        *,
        batch_format: BatchFormat = "numpy",
        fn_kwargs: Mapping[str, Any] | None = None,
        keeps_rows: bool = True,
        zero_copy_batch: bool = False,
    ) -> Dataset:
        """Return a dataset with a function applied to its batches, when they are read.

        Not collective.

        Parameters
        ----------
        function
            Is given a batch, of whatever size, and returns one in any form. A batch may be empty.
        batch_format
            Form of what it is given: "numpy" (a dict of arrays), "pandas" or "pyarrow".
        fn_kwargs
            Further arguments of the function.
        keeps_rows
            Whether it returns a row for each row.
        zero_copy_batch
            Whether the function is given arrays as they are, which cannot be changed. Otherwise
            they are its own to change, and copied where they are views of the dataset's.
        """
        check_format(batch_format)
        return self._with(
            MapBatches(
                function,
                batch_format,
                dict(fn_kwargs or {}),
                keeps_rows=keeps_rows,
                zero_copy_batch=zero_copy_batch,
            )
        )

    def filter(
        self, function: Callable[..., Any], *, batch_format: BatchFormat = "numpy"
    ) -> Dataset:
        """Return a dataset of the rows that a function wants.

        Not collective.

        Parameters
        ----------
        function
            Is given a batch, which it cannot change, and returns a bool for each of its rows.
        batch_format
            Form of what it is given.
        """
        check_format(batch_format)
        return self._with(Filter(function, batch_format))

    def select_columns(self, columns: Sequence[str]) -> Dataset:
        """Return a dataset of some columns; the others are not read.

        Not collective.

        Raises
        ------
        ConfigError
            If one does not exist.
        """
        if self.steps:
            check_columns(columns, self.columns)
            return self._with(Select(tuple(columns)))
        check_columns(columns, self.read_schema.names)
        return replace(self, columns_read=tuple(columns))

    def drop_columns(self, columns: Sequence[str]) -> Dataset:
        """Return a dataset without some columns, which are not read.

        Not collective.

        Raises
        ------
        ConfigError
            If one does not exist.
        """
        if self.steps:
            check_columns(columns, self.columns)
            return self._with(Drop(tuple(columns)))
        check_columns(columns, self.read_schema.names)
        left = tuple(name for name in self.read_schema if name not in set(columns))
        return replace(self, columns_read=left)

    def limit(self, num_rows: int) -> Dataset:
        """Return a dataset of the first rows, all if there are fewer.

        Not collective.

        Raises
        ------
        ConfigError
            If it is a negative number.
        """
        _check_limit(num_rows)
        if self.keeps_rows:
            return self.take_ranges([range(min(num_rows, self.source.num_rows))])
        pieces = self._pieces([range(self.source.num_rows)])
        first = list(rebatch(pieces, [num_rows]))
        return _in_memory(first[0]) if first else self.take_ranges([]).materialize()

    def take_ranges(self, ranges: Sequence[range]) -> Dataset:
        """Return a dataset of some rows of the source, by ranges of step 1, in their order.

        Not collective.

        Raises
        ------
        ConfigError
            If a range has another step, or rows that are not there.
        """
        ranges = [check_range(rows, self.source.num_rows) for rows in ranges]
        if isinstance(self.source, RowRanges):
            inner = [part for rows in ranges for part in take_rows(self.source.ranges, rows)]
            return replace(self, source=replace(self.source, ranges=tuple(inner)))
        return replace(self, source=RowRanges(source=self.source, ranges=tuple(ranges)))

    def random_shuffle(self, *, seed: int = 0) -> Dataset:
        """Return a dataset with its rows in another order, the same each time.

        Not collective. Pieces from all over the dataset, and rows permuted within some of them at a
        time; nothing is written. For a new order each epoch, ask `DataIterator.iter_batches`.

        Parameters
        ----------
        seed
            What the order follows from.

        Raises
        ------
        ConfigError
            After `filter`, which leaves a number of rows that is not known: shuffle before.
        """
        from hpctrain.data.shuffled import ShuffledRows

        self._check_rows_known("random_shuffle()")
        row_bytes = self.read_schema.row_bytes
        mixing = choose_mixing(self.source, row_bytes, buffer_rows=None, seed=seed)
        return replace(self, source=ShuffledRows(source=self.source, mixing=mixing))

    def train_test_split(
        self, test_size: int | float, *, shuffle: bool = False, seed: int = 0
    ) -> tuple[Dataset, Dataset]:
        """Return a dataset to train with, and one to test with.

        Not collective.

        Parameters
        ----------
        test_size
            Rows of the second one, or its share of the rows, between 0 and 1.
        shuffle
            Whether its rows are drawn from all over the dataset; otherwise they are the last ones.
        seed
            What is drawn follows from.

        Raises
        ------
        ConfigError
            If one of the two would be empty, or after `filter`: split before.
        """
        self._check_rows_known("train_test_split()")
        total = self.source.num_rows
        rows = test_size if isinstance(test_size, int) else round(total * test_size)
        if not 0 < rows < total:
            raise ConfigError(
                f"train_test_split(test_size={test_size!r}) of {total} rows: each part needs one. "
                f"Give a number of rows, or a share between 0 and 1."
            )
        whole = self.random_shuffle(seed=seed) if shuffle else self
        border = total - rows
        return whole.take_ranges([range(border)]), whole.take_ranges([range(border, total)])

    def take(self, num_rows: int = 20) -> list[dict[str, Any]]:
        """Return the first rows as dicts, all if there are fewer.

        Not collective.

        Raises
        ------
        ConfigError
            If it is a negative number.
        """
        _check_limit(num_rows)
        batch = next(self.iter_batches(batch_size=max(num_rows, 1)), None)
        if batch is None or num_rows < 1:
            return []
        return list(rows_of(slice_batch(batch, 0, num_rows)))

    def iter_batches(
        self,
        *,
        batch_size: int = 1024,
        batch_format: BatchFormat = "numpy",
        rows: range | None = None,
        columns: Sequence[str] | None = None,
    ) -> Passes[Any]:
        """Return the rows of the whole dataset in batches, in order.

        Not collective. What is returned can be iterated over again. It has a ``len()`` unless a
        filter leaves the number of rows open.

        Parameters
        ----------
        batch_size
            Rows of a batch; the last one may have fewer.
        batch_format
            "numpy" gives a dict of arrays that have a row per element, "pandas" a data frame,
            "pyarrow" a table. Do not write into arrays: they may be views of the dataset's own.
        rows
            Rows of the source to read, a range of step 1; None is all.
        columns
            Columns of the batches; None is all.

        Raises
        ------
        ConfigError
            If there are no such rows or columns, or a value is impossible.
        """
        check_format(batch_format)
        check_batch_size(batch_size)
        chosen = self if columns is None else self.select_columns(columns)
        wanted = range(self.source.num_rows) if rows is None else rows
        wanted = check_range(wanted, self.source.num_rows)

        def begin() -> Iterator[Any]:
            batches = chosen.typed_batches(wanted, batch_size)
            if batch_format == "numpy" and chosen.is_plain:
                return batches
            return (to_format(batch, batch_format) for batch in batches)

        return passes(begin, -(-len(wanted) // batch_size) if chosen.keeps_rows else None)

    def typed_batches(self, rows: range, batch_size: int) -> Iterator[Batch]:
        """Return rows in batches of arrays whose types have their categories. Not collective."""
        return rebatch(self._pieces([rows], batch_size=batch_size), repeat(batch_size))

    def iter_rows(self) -> Passes[dict[str, Any]]:
        """Return the rows, each a dict. Not collective. It can be iterated over again."""
        batches = self.iter_batches()
        return passes(
            lambda: chain.from_iterable(map(rows_of, batches)),
            self.source.num_rows if self.keeps_rows else None,
        )

    def shard(
        self, *, rank: int, world_size: int, tail: Tail = "uneven", device: str = "cpu"
    ) -> DataIterator:
        """Return one rank's part.

        Not collective.

        Parameters
        ----------
        rank, world_size
            Which part, of how many.
        tail
            What becomes of rows that do not fill a batch on every rank. ``"uneven"`` gives each
            rank the same number of batches, whose sizes differ by one row at most, so every row is
            there once; a rank without a row gets an empty batch. ``"drop"`` leaves the rest out.
            ``"pad"`` repeats rows until every batch is full.
        device
            Where torch's tensors go by default.
        """
        from hpctrain.data.iterator import DataIterator

        return DataIterator(self, rank=rank, world_size=world_size, tail=tail, device=device)

    def materialize(self) -> Dataset:
        """Return the dataset with its rows read into memory. Not collective."""
        return _in_memory(self._all_rows())

    def to_numpy(self) -> Batch:
        """Return all rows as a dict of arrays. Not collective."""
        return plain(self._all_rows())

    def to_pandas(self) -> Any:
        """Return all rows as a data frame. Not collective."""
        return to_pandas(self._all_rows())

    def to_arrow(self) -> Any:
        """Return all rows as an Arrow table. Not collective."""
        return to_arrow(self._all_rows())

    def _all_rows(self) -> Batch:
        return concatenate(list(self._pieces([range(self.source.num_rows)])))

    def _check_rows_known(self, what: str) -> None:
        if not self.keeps_rows:
            raise ConfigError(
                f"{what}: how many rows filter() or map_batches(keeps_rows=False) leave is known "
                f"after a pass over the data. Do it before them; count() and materialize() make "
                f"a pass."
            )

    def _with(self, step: Step) -> Dataset:
        return replace(self, steps=(*self.steps, step))

    def write_parquet(self, path: str | PathLike[str], *, compression: str = "zstd") -> Path:
        """Write the rows to a Parquet file, in passing.

        Not collective. The file appears when it is complete, as with all writers.

        Parameters
        ----------
        path
            A file that does not exist, ending with ``.parquet``.
        compression
            One of Parquet's, or "none".

        Raises
        ------
        ConfigError
            If the path has another ending, or exists; before anything is read.
        """
        from hpctrain.data.write import write_parquet

        return write_parquet(self, path, compression=compression)

    def write_hdf5(
        self, path: str | PathLike[str], *, compression: str | None = None, group: str = "/"
    ) -> Path:
        """Write the rows to an HDF5 file, a dataset for each column.

        Not collective.

        Parameters
        ----------
        path
            A file that does not exist, ending with ``.h5`` or ``.hdf5``.
        compression
            "gzip" or "lzf"; None writes what is read fastest.
        group
            Where in the file the datasets are.

        Raises
        ------
        ConfigError
            If the path has another ending, or exists; before anything is read.
        """
        from hpctrain.data.write import write_hdf5

        return write_hdf5(self, path, compression=compression, group=group)

    def write_csv(self, path: str | PathLike[str]) -> Path:
        """Write the rows to a CSV file.

        Not collective.

        Parameters
        ----------
        path
            A file that does not exist, ending with ``.csv``.

        Raises
        ------
        ConfigError
            If the path has another ending, or exists, or a row of a column is an array.
        """
        from hpctrain.data.write import write_csv

        return write_csv(self, path)

    def write_numpy(self, path: str | PathLike[str]) -> Path:
        """Write the rows to a directory of ``.npz`` files, for `read_numpy`.

        Not collective.

        Parameters
        ----------
        path
            A directory that does not exist.

        Raises
        ------
        ConfigError
            If it exists, or a column has no numbers.
        """
        from hpctrain.data.write import write_numpy

        return write_numpy(self, path)

    def with_steps(self, tasks: Iterable[Task]) -> Iterator[Task]:
        """Return tasks that also apply the steps. Not collective."""
        if not self.steps:
            return iter(tasks)
        # Several threads read, but nobody expects of a function that they call it all at once.
        one_at_a_time = Lock()
        return (partial(self._read_and_apply, task, one_at_a_time) for task in tasks)

    def _read_and_apply(self, task: Task, one_at_a_time: Lock) -> Batch:
        batch = task()
        with one_at_a_time:
            return self.apply(batch)

    def _pieces(self, ranges: Sequence[range], *, batch_size: int = 1) -> Iterator[Batch]:
        tasks = tasks_in_order(
            self.source, ranges, self.columns_read, memory=Memory(), batch_size=batch_size
        )
        return prefetch(self.with_steps(tasks), threads=0 if self.is_instant else spare_threads())


def _check_limit(num_rows: int) -> None:
    if not isinstance(num_rows, Integral) or num_rows < 0:
        raise ConfigError(f"{num_rows} rows: a number of rows, 0 or more, is needed.")


def _in_memory(batch: Batch) -> Dataset:
    return Dataset(MemorySource(arrays=batch))
