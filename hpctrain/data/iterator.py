"""`DataIterator`: one rank's part of a dataset, epoch after epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from hpctrain.data.categories import plain
from hpctrain.data.dataset import Dataset
from hpctrain.data.formats import (
    Batch,
    BatchFormat,
    check_batch_size,
    check_format,
    num_rows,
    rows_of,
    to_format,
)
from hpctrain.data.passes import Passes, SizedPasses, passes
from hpctrain.data.prefetch import prefetch, spare_threads
from hpctrain.data.schema import Schema
from hpctrain.data.shard_tensors import ShardTensors
from hpctrain.data.source import at_epoch, block_rows, in_one_order, read_rows
from hpctrain.data.split import Tail, Taken, batch_sizes, check_tail, left_over, part_of
from hpctrain.data.stream import Mixing, choose_mixing, rebatch, tasks_in_order, tasks_shuffled
from hpctrain.data.window import PIECE_BYTES, Memory
from hpctrain.errors import ConfigError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class _Settings:
    """What an epoch was asked for with."""

    batch_size: int
    sizes: list[int]
    """Rows of each batch of this rank."""
    tail: Tail
    mixing: Mixing | None
    prefetch_batches: int
    epoch: int
    before: tuple[Taken, ...]
    """What had been taken of the epoch when it was asked for."""
    loads: int
    """States that had been loaded when it was asked for."""


class DataIterator(ShardTensors):
    """One rank's part of a dataset.

    Every pass over ``iter_batches()`` is an epoch, and every rank gets the same number of batches
    of it. The order of an epoch follows from seed and epoch alone, and which rows come next from
    how many have come: `state_dict` is a few numbers, and a run can go on in the middle of an epoch
    with another number of ranks, without a row that is missed or comes twice.

    Parameters
    ----------
    dataset
        Of which this is a part.
    rank, world_size
        Which part, of how many.
    tail
        What becomes of rows that do not fill a batch on every rank; see `Dataset.shard`.
    device
        Where torch's tensors go by default.
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        rank: int,
        world_size: int,
        tail: Tail = "uneven",
        device: str = "cpu",
    ) -> None:
        check_tail(tail)
        if not 0 <= rank < world_size:
            raise ConfigError(f"rank={rank} of world_size={world_size}: from 0 to below it.")
        self._dataset = dataset
        self._rank = rank
        self._world_size = world_size
        self._tail = tail
        self.device = device
        """Where torch's tensors go by default."""
        self._epoch = 0
        self._memory = Memory()
        self._before: tuple[Taken, ...] = ()
        self._rows = 0
        self._moving: _Settings | None = None
        """Of the iterator that moves the position: the first that began in the epoch."""
        self._loads = 0
        self._mixing: Mixing | None = None
        """Of the epoch that has begun, which has to go on with the same."""

    def __repr__(self) -> str:
        """Return which part of what this is."""
        return f"DataIterator(rank {self._rank} of {self._world_size}, {self._dataset!r})"

    @property
    def dataset(self) -> Dataset:
        """The whole, of which this is a part."""
        return self._dataset

    @property
    def is_whole(self) -> bool:
        """Whether this has all rows of the dataset."""
        return self._world_size == 1

    @property
    def epoch(self) -> int:
        """Number of the epoch that has begun, or that begins next; from 0."""
        return self._epoch

    @property
    def num_rows(self) -> int:
        """Rows of this rank in a whole epoch, before filters."""
        return sum(map(len, self._part(())))

    def count(self) -> int:
        """Return the rows of this rank in the epoch that has begun or is next, after filters.

        Not collective. Where nothing else tells it, makes a pass over the rank's rows, which moves
        no position.
        """
        source = at_epoch(self._dataset.source, self._epoch)
        return replace(self._dataset, source=source).count_rows(self._part(()))

    def in_one_order(self) -> DataIterator:
        """Return this rank's part with its rows in one order, that of epoch 0, in each pass.

        Not collective. For code that reads the rows several times, and counts on the same ones: a
        dataset that is shuffled without a seed has a new order each epoch.
        """
        return DataIterator(
            replace(self._dataset, source=in_one_order(self._dataset.source)),
            rank=self._rank,
            world_size=self._world_size,
            tail=self._tail,
            device=self.device,
        )

    def num_batches(self, batch_size: int, *, tail: Tail | None = None) -> int:
        """Return how many batches a whole epoch has, the same on every rank. Not collective."""
        check_batch_size(batch_size)
        return len(self._sizes((), batch_size, tail or self._tail))

    def schema(self) -> Schema:
        """Return names, types and shapes of the columns. Not collective."""
        return self._dataset.schema()

    def iter_batches(
        self,
        *,
        batch_size: int | None = 256,
        batch_format: BatchFormat = "numpy",
        shuffle: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int = 0,
        drop_last: bool = False,
        tail: Tail | None = None,
        prefetch_batches: int = 1,
    ) -> SizedPasses[Any]:
        """Return the batches of the next epoch, or the rest of the one that was resumed.

        Not collective, but every rank must give the same arguments. What is returned can be
        iterated over again: each pass is the next epoch, also after one that was broken off. So
        every rank must begin as many passes: `epoch` decides the order. ``len()`` is the number
        of batches of a whole epoch, the same on every rank.

        Parameters
        ----------
        batch_size
            Rows of a batch of this rank. After `Dataset.filter` a batch has what is left of so many
            rows, and may be empty: write the filtered rows to files if they are to be full. None is
            some MiB of rows.
        batch_format
            "numpy" gives a dict of arrays that have a row per element, "pandas" a data frame,
            "pyarrow" a table. Do not write into arrays: they may be views of the dataset's own.
        shuffle
            Whether the rows come in another order each epoch: pieces from all over the dataset, and
            rows permuted within some of them at a time.
        local_shuffle_buffer_size
            Rows that are permuted at a time, about; more mix better and need more memory. Given, it
            means `shuffle` too. None is what the cache of a core holds.
        local_shuffle_seed
            What the order of all epochs follows from.
        drop_last
            The same as ``tail="drop"``.
        tail
            What becomes of rows that do not fill a batch on every rank, if not what `Dataset.shard`
            was given.
        prefetch_batches
            Batches that are read ahead by a thread, at least; 0 reads when a batch is asked for.

        Raises
        ------
        ConfigError
            If a value is impossible, if an epoch is resumed with another shuffle, or if "drop"
            would leave no batch at all.
        """
        check_format(batch_format)
        as_it_is = batch_format == "numpy" and self._dataset.is_plain
        return self._passes(
            None if as_it_is else partial(to_format, batch_format=batch_format),
            batch_size=batch_size,
            shuffle=shuffle,
            local_shuffle_buffer_size=local_shuffle_buffer_size,
            local_shuffle_seed=local_shuffle_seed,
            tail="drop" if drop_last else tail,
            prefetch_batches=prefetch_batches,
        )

    def iter_torch_batches(
        self,
        *,
        batch_size: int | None = 256,
        dtypes: torch.dtype | Mapping[str, torch.dtype] | None = None,
        device: str | torch.device = "auto",
        collate_fn: Callable[[Batch], Any] | None = None,
        shuffle: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int = 0,
        drop_last: bool = False,
        tail: Tail | None = None,
        prefetch_batches: int = 1,
    ) -> SizedPasses[Any]:
        """Return the batches of the next epoch as tensors.

        Not collective, but every rank must give the same arguments. As with `iter_batches`, each
        pass over what is returned is the next epoch.

        Parameters
        ----------
        batch_size
            Rows of a batch of this rank.
        dtypes
            Type of all columns, or of some by name; the others keep theirs.
        device
            Where tensors go. "auto" is the rank's GPU if it has one, else the CPU.
        collate_fn
            Makes a batch of a dict of arrays, instead of the two above.
        shuffle, local_shuffle_buffer_size, local_shuffle_seed, drop_last, tail, prefetch_batches
            As in `iter_batches`.

        Returns
        -------
        SizedPasses
            Of dicts of tensors by column name, or what `collate_fn` returns.

        Raises
        ------
        ConfigError
            As in `iter_batches`, or if a column has no numbers.
        """
        from hpctrain.data.tensors import to_torch

        where = self.device if device == "auto" else device
        made = collate_fn or partial(to_torch, dtypes=dtypes, device=where)
        return self._passes(
            made if self._dataset.is_plain else lambda batch: made(plain(batch)),
            batch_size=batch_size,
            shuffle=shuffle,
            local_shuffle_buffer_size=local_shuffle_buffer_size,
            local_shuffle_seed=local_shuffle_seed,
            tail="drop" if drop_last else tail,
            prefetch_batches=prefetch_batches,
        )

    def iter_rows(self) -> Passes[dict[str, Any]]:
        """Return the rows of the next epoch, each a dict.

        Not collective. As with `iter_batches`, each pass over what is returned is the next epoch.
        It has a ``len()`` unless a filter leaves the number of rows open.
        """
        size = 256
        batches = self.iter_batches(batch_size=size)
        if self._tail == "pad":
            count = len(batches) * size
        else:
            count = sum(self._sizes_of(self._dataset.source.num_rows, size, self._tail))
        return passes(
            lambda: chain.from_iterable(map(rows_of, batches)),
            count if self._dataset.keeps_rows else None,
        )

    def to_tf(
        self,
        feature_columns: str | Sequence[str],
        label_columns: str | Sequence[str],
        *,
        batch_size: int = 256,
        shuffle: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int = 0,
        drop_last: bool = False,
        tail: Tail | None = None,
        prefetch_batches: int = 1,
    ) -> Any:
        """Return a ``tf.data.Dataset`` of pairs of features and labels; each pass is an epoch.

        Not collective. It knows how many batches an epoch has. TensorFlow reads ahead, and what it
        has read counts as taken in `state_dict`: save that between epochs. A state in the middle of
        an epoch is to be loaded before this is called.

        Parameters
        ----------
        feature_columns, label_columns
            One name gives a tensor, a list of names a dict of tensors.
        batch_size
            Rows of a batch of this rank.
        shuffle, local_shuffle_buffer_size, local_shuffle_seed, drop_last, tail, prefetch_batches
            As in `iter_batches`.

        Raises
        ------
        ConfigError
            If TensorFlow is not installed, or there is no such column.
        """
        from hpctrain.data.tensors import to_tensorflow

        batches: SizedPasses[Batch] = self._passes(
            None,
            batch_size=batch_size,
            shuffle=shuffle,
            local_shuffle_buffer_size=local_shuffle_buffer_size,
            local_shuffle_seed=local_shuffle_seed,
            tail="drop" if drop_last else tail,
            prefetch_batches=prefetch_batches,
        )
        return to_tensorflow(
            batches,
            self.schema(),
            feature_columns,
            label_columns,
            num_batches=None if self._before else len(batches),
        )

    def materialize(self) -> Dataset:
        """Return this rank's part, in the order of the dataset, read into memory.

        Not collective.
        """
        return self._dataset.take_ranges(self._part(())).materialize()

    def state_dict(self) -> dict[str, Any]:
        """Return where in which epoch this is, as numbers for JSON; the same on every rank.

        Not collective. What counts are the batches that have been given out.
        """
        taken = list(self._before)
        if self._moving and self._rows:
            taken.append(Taken(self._world_size, self._rows, self._moving.tail))
        return {
            "epoch": self._epoch,
            "taken": [asdict(some) for some in taken],
            "mixing": asdict(self._mixing) if taken and self._mixing else None,
            "num_rows": self._dataset.source.num_rows,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on after the batches that had been given out, with as many ranks as there are now.

        Not collective, but every rank must load the same state.

        Raises
        ------
        ConfigError
            If the dataset has another number of rows than it had.
        """
        rows = self._dataset.source.num_rows
        if state["taken"] and state["num_rows"] != rows:
            raise ConfigError(
                f"the dataset has {rows} rows, and had {state['num_rows']} when epoch "
                f"{state['epoch']} began. An epoch goes on with the same rows only: give the same "
                f"files, or begin the next epoch."
            )
        self._epoch = state["epoch"]
        self._before = tuple(Taken(**some) for some in state["taken"])
        self._rows, self._moving = 0, None
        self._loads += 1
        self._mixing = Mixing(**state["mixing"]) if state["mixing"] else None

    def _passes(
        self,
        made: Callable[[Batch], Any] | None,
        *,
        batch_size: int | None,
        tail: Tail | None,
        **how: Any,
    ) -> SizedPasses[Any]:
        size = block_rows(self._dataset.read_schema) if batch_size is None else batch_size
        # What is wrong is an error of the call, not of a loop that may come much later.
        first: list[_Settings] = [self._begin(batch_size=size, tail=tail, **how)]

        def begin() -> Iterator[Any]:
            settings = first.pop() if first else None
            if settings is None or settings.loads != self._loads:
                settings = self._begin(batch_size=size, tail=tail, **how)
            batches = self._batches(settings)
            return batches if made is None else map(made, batches)

        whole = self._sizes_of(self._dataset.source.num_rows, size, tail or self._tail)
        return SizedPasses(begin, len(whole))

    def _begin(
        self,
        *,
        batch_size: int,
        shuffle: bool,
        local_shuffle_buffer_size: int | None,
        local_shuffle_seed: int,
        tail: Tail | None,
        prefetch_batches: int,
    ) -> _Settings:
        check_batch_size(batch_size)
        check_tail(tail or self._tail)
        mixing = None
        if local_shuffle_buffer_size is not None and local_shuffle_buffer_size < 1:
            raise ConfigError(
                f"local_shuffle_buffer_size={local_shuffle_buffer_size!r}: rows, one or more."
            )
        if shuffle or local_shuffle_buffer_size is not None:
            mixing = choose_mixing(
                self._dataset.source,
                self._dataset.read_schema.row_bytes,
                buffer_rows=local_shuffle_buffer_size,
                seed=local_shuffle_seed,
            )
        if self._rows:
            self._end_epoch()
        if self._before and mixing != self._mixing:
            raise ConfigError(
                f"epoch {self._epoch} began with {self._mixing or 'no shuffle'} and cannot go on "
                f"with {mixing or 'none'}. Give the same columns, seed and buffer size as before."
            )
        self._mixing = mixing
        return _Settings(
            batch_size=batch_size,
            sizes=self._sizes(self._before, batch_size, tail or self._tail),
            tail=tail or self._tail,
            mixing=mixing,
            prefetch_batches=prefetch_batches,
            epoch=self._epoch,
            before=self._before,
            loads=self._loads,
        )

    def _batches(self, settings: _Settings) -> Iterator[Batch]:
        dataset = self._dataset
        row_bytes, threads, ahead = dataset.read_schema.row_bytes, 0, 0
        if settings.prefetch_batches and not dataset.is_instant:
            mixing = settings.mixing
            threads = spare_threads(mixing.window_rows * row_bytes if mixing else PIECE_BYTES)
            wanted = settings.prefetch_batches * settings.batch_size * row_bytes
            ahead = 1 + -(-wanted // PIECE_BYTES)
        pieces = prefetch(self._tasks(settings), threads=threads, ahead=ahead)
        applied, filled = dataset.keeps_rows, settings.tail == "pad"
        if not self._rows and (settings.epoch, settings.before) == (self._epoch, self._before):
            self._moving = settings
        for batch in rebatch(pieces, settings.sizes):
            if settings is self._moving:
                self._rows += settings.batch_size
            if filled:
                batch = self._filled(batch, settings.batch_size)
            yield batch if applied else dataset.apply(batch)
            # Memory is used again once nobody has it.
            del batch
        if settings is self._moving:
            self._end_epoch()

    def _tasks(self, settings: _Settings) -> Iterator[Callable[[], Batch]]:
        dataset, part = self._dataset, self._part(settings.before)
        source = at_epoch(dataset.source, settings.epoch)
        if settings.mixing is None:
            tasks = tasks_in_order(
                source,
                part,
                dataset.columns_read,
                memory=self._memory,
                batch_size=settings.batch_size,
            )
        else:
            order = settings.mixing.order(source.num_rows, settings.epoch)
            tasks = tasks_shuffled(source, order, part, dataset.columns_read, memory=self._memory)
        # Where steps may drop rows they are left for batches, or ranks would have unlike numbers.
        return dataset.with_steps(tasks) if dataset.keeps_rows else tasks

    def _filled(self, batch: Batch, size: int) -> Batch:
        """Return a batch with its rows repeated until it is full."""
        if num_rows(batch) == 0:
            rows = range(min(size, self._dataset.source.num_rows))
            batch = read_rows(self._dataset.source, rows, self._dataset.columns_read)
            batch = self._dataset.apply(batch) if self._dataset.keeps_rows else batch
        length = num_rows(batch)
        if length in (0, size):
            return batch
        index = np.arange(size) % length
        return {name: array[index] for name, array in batch.items()}

    def _end_epoch(self) -> None:
        self._epoch, self._before, self._rows, self._mixing = self._epoch + 1, (), 0, None
        self._moving = None

    def _part(self, before: tuple[Taken, ...]) -> list[range]:
        left = left_over(self._dataset.source.num_rows, before)
        return part_of(left, rank=self._rank, world_size=self._world_size)

    def _sizes(self, before: tuple[Taken, ...], batch_size: int, tail: Tail) -> list[int]:
        left = sum(map(len, left_over(self._dataset.source.num_rows, before)))
        sizes = self._sizes_of(left, batch_size, tail)
        if not sizes and left and not before:
            raise ConfigError(
                f"tail='drop' leaves nothing of {left} rows: they do not fill a batch of "
                f"{batch_size} on each of {self._world_size} ranks. Use smaller batches, fewer "
                f"workers, or tail='uneven'."
            )
        return sizes

    def _sizes_of(self, rows: int, batch_size: int, tail: Tail) -> list[int]:
        return batch_sizes(
            rows, rank=self._rank, world_size=self._world_size, batch_size=batch_size, tail=tail
        )
