"""Rows, batches and tensors of the whole dataset, for the caller."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from hpctrain.data.arguments import flag, row_limit, shuffle_buffer
from hpctrain.data.arrow_batches import to_arrow
from hpctrain.data.batch import Batch, check_batch_size, num_rows
from hpctrain.data.categories import plain
from hpctrain.data.formats import BatchFormat, check_format, rows_of, to_format
from hpctrain.data.operations.combined import Combined
from hpctrain.data.operations.description import DatasetT, Description
from hpctrain.data.operations.mapped import Mapped
from hpctrain.data.operations.scheduling import say_no_meaning
from hpctrain.data.optional import require
from hpctrain.data.pandas_batches import to_pandas
from hpctrain.data.passes import Passes, SizedPasses, passes
from hpctrain.data.source import check_range, files_of_source
from hpctrain.data.stream import rebatch
from hpctrain.errors import ConfigError

if TYPE_CHECKING:
    import tensorflow
    import torch


class Consumed(Description):
    """Reads the rows."""

    def take(self, limit: int = 20) -> list[dict[str, Any]]:
        """Return the first rows as dicts, all if there are fewer.

        Not collective.

        Raises
        ------
        ConfigError
            If it is not an integer of 0 or more.
        """
        batch = self._first(row_limit(limit))
        return list(rows_of(plain(batch)))

    def take_all(self, limit: int | None = None) -> list[dict[str, Any]]:
        """Return all rows as dicts.

        Not collective.

        Parameters
        ----------
        limit
            Largest number of rows to accept; None is any.

        Raises
        ------
        ConfigError
            If there are more.
        """
        if limit is None:
            return list(self.iter_rows())
        most = row_limit(limit)
        rows = self.take(most + 1)
        if len(rows) > most:
            raise ConfigError(
                f"take_all(limit={limit}): the dataset has more rows. Use take({limit}) for the "
                f"first ones, or a larger limit."
            )
        return rows

    def take_batch(self, batch_size: int = 20, *, batch_format: BatchFormat = "numpy") -> Any:
        """Return the first rows as a batch, all if there are fewer.

        Not collective.

        Raises
        ------
        ConfigError
            If there is none, or a value is impossible.
        """
        check_batch_size(batch_size)
        form = check_format(batch_format)
        batch = self._first(batch_size)
        if not num_rows(batch):
            raise ConfigError(
                "take_batch(): the dataset has no rows. Look at its files and filters, or use "
                "take(), which returns an empty list."
            )
        return to_format(batch, form)

    def show(self, limit: int = 20) -> None:
        """Print the first rows, each in a line. Not collective."""
        for row in self.take(limit):
            sys.stdout.write(f"{row}\n")

    def _first(self, rows: int) -> Batch:
        return next(rebatch(self.all_pieces(), [rows]), {})

    def iter_batches(
        self,
        *,
        batch_size: int | None = 1024,
        batch_format: BatchFormat = "numpy",
        rows: range | None = None,
        columns: Sequence[str] | None = None,
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
        prefetch_batches: int | None = None,
    ) -> Passes[Any]:
        """Return the rows of the whole dataset in batches, in order.

        Not collective. The result can be iterated over again. It has a ``len()``, except after a
        filter or a class, whose number of rows is unknown.

        Parameters
        ----------
        batch_size
            Rows of a batch; the last one may have fewer. None is as many as are read at once.
        batch_format
            "numpy" gives a dict of arrays that have a row per element, "pandas" a data frame,
            "pyarrow" a table. Do not write into arrays: they may be views of the dataset's own.
        rows
            Rows of the source to read, a range of step 1; None is all.
        columns
            Columns of the batches; None is all.
        drop_last
            Whether to leave out a last batch that is not full.
        local_shuffle_buffer_size, local_shuffle_seed
            A buffer size shuffles the rows: see `Dataset.random_shuffle`, with that seed.
        prefetch_batches
            Accepted, without effect: threads read ahead as needed.

        Raises
        ------
        ConfigError
            If there are no such rows or columns, or a value is impossible.
        """
        form = check_format(batch_format)
        if batch_size is not None:
            check_batch_size(batch_size)
        whole_only = flag("drop_last", drop_last)
        say_no_meaning("iter_batches()", {"prefetch_batches": prefetch_batches})
        chosen = self if columns is None else Mapped.select_columns(self, columns)
        if shuffle_buffer(local_shuffle_buffer_size) is not None:
            chosen = Combined.random_shuffle(chosen, seed=local_shuffle_seed)
        if rows is None and chosen.has_classes:
            chosen = chosen.assuming_nothing()
        wanted = range(chosen.source.num_rows) if rows is None else rows
        wanted = check_range(wanted, chosen.source.num_rows)
        length = None
        if chosen.keeps_rows and batch_size is not None:
            length = (len(wanted) + (0 if whole_only else batch_size - 1)) // batch_size

        def begin() -> Iterator[Any]:
            batches: Iterator[Batch]
            if batch_size is None:
                batches = filter(num_rows, chosen.pieces([wanted]))
            else:
                batches = chosen.typed_batches(wanted, batch_size)
            if whole_only and batch_size is not None:
                batches = (batch for batch in batches if num_rows(batch) == batch_size)
            if form == "numpy" and chosen.is_plain:
                return batches
            return (to_format(batch, form) for batch in batches)

        return passes(begin, length)

    def iter_torch_batches(
        self,
        *,
        batch_size: int | None = 256,
        dtypes: torch.dtype | Mapping[str, torch.dtype] | None = None,
        device: str | torch.device = "auto",
        collate_fn: Callable[[Batch], Any] | None = None,
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
        prefetch_batches: int | None = None,
    ) -> Passes[Any]:
        """Return the rows of the whole dataset in batches of tensors.

        Not collective. A training function uses `DataIterator.iter_torch_batches` of its shard.

        Parameters
        ----------
        batch_size
            As in `iter_batches`.
        dtypes
            Type of all columns, or of some by name; the others keep theirs.
        device
            Where tensors go. "auto" is the GPU if there is one, else the CPU.
        collate_fn
            Converts a dict of arrays to a batch, in place of `dtypes` and `device`.
        drop_last, local_shuffle_buffer_size, local_shuffle_seed
            As in `iter_batches`.
        prefetch_batches
            Accepted, without effect.

        Raises
        ------
        ConfigError
            As in `iter_batches`, or if a column has no numbers.
        """
        from hpctrain.data.tensors import torch_maker

        say_no_meaning("iter_torch_batches()", {"prefetch_batches": prefetch_batches})
        batches = self.iter_batches(
            batch_size=batch_size,
            drop_last=drop_last,
            local_shuffle_buffer_size=local_shuffle_buffer_size,
            local_shuffle_seed=local_shuffle_seed,
        )
        if isinstance(device, str) and device == "auto":
            torch = require("torch", to="for batches of tensors", extra="torch")
            device = "cuda" if torch.cuda.is_available() else "cpu"
        return _each(torch_maker(dtypes, device, collate_fn), batches)

    def iter_tf_batches(
        self,
        *,
        batch_size: int | None = 256,
        dtypes: tensorflow.DType | Mapping[str, tensorflow.DType] | None = None,
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
        prefetch_batches: int | None = None,
    ) -> Passes[Any]:
        """Return the rows of the whole dataset in batches of TensorFlow's tensors.

        Not collective. A training function uses `DataIterator.to_tf` of its shard.

        Parameters
        ----------
        batch_size
            As in `iter_batches`.
        dtypes
            Type of the tensors, or types by column; None is that of the batches.
        drop_last, local_shuffle_buffer_size, local_shuffle_seed
            As in `iter_batches`.
        prefetch_batches
            Accepted, without effect.
        """
        say_no_meaning("iter_tf_batches()", {"prefetch_batches": prefetch_batches})
        require("tensorflow", to="for iter_tf_batches()", extra="tensorflow")
        from hpctrain.data.tensors import to_tensorflow_batch

        batches = self.iter_batches(
            batch_size=batch_size,
            drop_last=drop_last,
            local_shuffle_buffer_size=local_shuffle_buffer_size,
            local_shuffle_seed=local_shuffle_seed,
        )
        return _each(partial(to_tensorflow_batch, dtypes=dtypes), batches)

    def iter_rows(self, *, prefetch_batches: int | None = None) -> Passes[dict[str, Any]]:
        """Return the rows, each a dict.

        Not collective. They can be iterated over again.

        Parameters
        ----------
        prefetch_batches
            Accepted, without effect.
        """
        say_no_meaning("iter_rows()", {"prefetch_batches": prefetch_batches})
        batches = self.iter_batches()
        return passes(
            lambda: chain.from_iterable(map(rows_of, batches)),
            self.source.num_rows if self.keeps_rows and not self.has_classes else None,
        )

    def input_files(self) -> list[str]:
        """Return the files that rows are in. Not collective."""
        return files_of_source(self.source)

    def materialize(self: DatasetT) -> DatasetT:
        """Return the dataset with its rows read into memory. Not collective."""
        return self.in_memory(self.all_rows())

    def to_numpy(self) -> Batch:
        """Return all rows as a dict of arrays. Not collective."""
        return plain(self.all_rows())

    def to_pandas(self, limit: int | None = None) -> Any:
        """Return all rows as a data frame.

        Not collective.

        Parameters
        ----------
        limit
            Largest number of rows to accept; None is any.

        Raises
        ------
        ConfigError
            If there are more.
        """
        if limit is None:
            return to_pandas(self.all_rows())
        most = row_limit(limit)
        batch = self._first(most + 1)
        if num_rows(batch) > most:
            raise ConfigError(
                f"to_pandas(limit={limit}): the dataset has more rows. Use "
                f"limit({limit}).to_pandas() for the first ones, or a larger limit."
            )
        return to_pandas(batch)

    def to_dask(self) -> Any:
        """Return a data frame of Dask, whose partitions are read when Dask computes them.

        Not collective. For sorts, groups and joins of data that does not fit into memory: let Dask
        write Parquet, and read it with `read_parquet`.

        Raises
        ------
        ConfigError
            If Dask is not installed.
        """
        from hpctrain.data.operations.dask import to_dask

        return to_dask(self)

    def to_arrow(self) -> Any:
        """Return all rows as an Arrow table. Not collective."""
        return to_arrow(self.all_rows())


def _each(made: Callable[[Batch], Any], batches: Passes[Batch]) -> Passes[Any]:
    """Return passes over the result of a function for each batch."""
    length = len(batches) if isinstance(batches, SizedPasses) else None
    return passes(lambda: map(made, batches), length)
