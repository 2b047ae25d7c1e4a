"""`DataIterator`: one rank's part of a dataset, epoch after epoch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from hpctrain.checks import shown
from hpctrain.data.arguments import flag, is_integer
from hpctrain.data.batch import Batch
from hpctrain.data.categories import plain
from hpctrain.data.dataset import Dataset
from hpctrain.data.epochs import Epochs
from hpctrain.data.formats import BatchFormat, check_format, rows_of, to_format
from hpctrain.data.passes import Passes, SizedPasses, passes
from hpctrain.data.schema import Schema
from hpctrain.data.shard_tensors import ShardTensors
from hpctrain.data.source import at_epoch, in_one_order
from hpctrain.data.split import Tail, check_tail
from hpctrain.errors import ConfigError

if TYPE_CHECKING:
    import torch


class DataIterator(ShardTensors):
    """One rank's part of a dataset.

    Every pass over ``iter_batches()`` is an epoch, and every rank gets the same number of batches
    of it. The order of an epoch depends on seed and epoch alone, and the next rows on how many rows
    have been given out: `state_dict` is a few numbers, and a run can resume in the middle of an
    epoch with another number of ranks, without missing or repeating a row.

    Parameters
    ----------
    dataset
        The whole dataset.
    rank, world_size
        Which part, of how many.
    tail
        What happens to rows that do not fill a batch on every rank; see `Dataset.shard`.
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
        if not isinstance(dataset, Dataset):
            raise ConfigError(
                f"DataIterator({shown(dataset)}) is not of a Dataset. Make one, as with "
                f"hpctrain.data.from_items()."
            )
        if not (is_integer(rank) and is_integer(world_size) and 0 <= rank < world_size):
            raise ConfigError(
                f"rank={shown(rank)} is not a rank of world_size={shown(world_size)}. Give one "
                f"from 0 to below it."
            )
        self._dataset = dataset
        self._rank = rank
        self._world_size = world_size
        self._tail = tail
        self.device = device
        """Where torch's tensors go by default."""
        self._epochs = Epochs(dataset, rank=rank, world_size=world_size, tail=tail)

    def __repr__(self) -> str:
        """Return rank, world size and dataset."""
        return f"DataIterator(rank {self._rank} of {self._world_size}, {self._dataset!r})"

    @property
    def dataset(self) -> Dataset:
        """The whole dataset."""
        return self._dataset

    @property
    def is_whole(self) -> bool:
        """Whether this has all rows of the dataset."""
        return self._world_size == 1

    @property
    def epoch(self) -> int:
        """Number of the epoch that has begun, or that begins next; from 0."""
        return self._epochs.epoch

    @property
    def num_rows(self) -> int:
        """Rows of this rank in a whole epoch, before filters."""
        return sum(map(len, self._epochs.rows()))

    def count(self) -> int:
        """Return the rows of this rank in the epoch that has begun or is next, after filters.

        Not collective. After a filter this reads the rank's rows; the position stays the same.
        """
        source = at_epoch(self._dataset.source, self.epoch)
        return replace(self._dataset, source=source).count_rows(self._epochs.rows())

    def in_one_order(self) -> DataIterator:
        """Return this rank's part with its rows in one order, that of epoch 0, in each pass.

        Not collective. For code that reads the rows several times and needs the same order: a
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
        return self._epochs.num_batches(batch_size, tail)

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

        Not collective, but every rank must give the same arguments. The result can be iterated
        over again: each pass is the next epoch, also after a pass that did not finish. Every rank
        must begin the same number of passes, because `epoch` decides the order. ``len()`` is the
        number of batches of a whole epoch, the same on every rank.

        Parameters
        ----------
        batch_size
            Rows of a batch of this rank. `Dataset.filter` drops rows from a batch of that size,
            which may leave it empty: for full batches write the filtered rows to files. None is
            some MiB of rows.
        batch_format
            "numpy" gives a dict of arrays that have a row per element, "pandas" a data frame,
            "pyarrow" a table. Do not write into arrays: they may be views of the dataset's own.
        shuffle
            Whether the rows come in another order each epoch: blocks from all over the dataset, and
            rows permuted within several of them at a time.
        local_shuffle_buffer_size
            About how many rows are permuted at a time; more rows mix better and need more memory. A
            number implies `shuffle`. None is as many as fit in the cache of a core.
        local_shuffle_seed
            Seed of the order of all epochs.
        drop_last
            The same as ``tail="drop"``.
        tail
            What happens to rows that do not fill a batch on every rank. None is the `tail` of
            `Dataset.shard`.
        prefetch_batches
            Least number of batches that threads read ahead; 0 reads each batch on request.

        Raises
        ------
        ConfigError
            If a value is impossible, if an epoch is resumed with another shuffle, or if "drop"
            would leave no batch at all.
        """
        check_format(batch_format)
        as_it_is = batch_format == "numpy" and self._dataset.is_plain
        return self._epochs.passes(
            None if as_it_is else partial(to_format, batch_format=batch_format),
            batch_size=batch_size,
            shuffle=shuffle,
            local_shuffle_buffer_size=local_shuffle_buffer_size,
            local_shuffle_seed=local_shuffle_seed,
            tail="drop" if flag("drop_last", drop_last) else tail,
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
        pass over the result is the next epoch.

        Parameters
        ----------
        batch_size
            Rows of a batch of this rank.
        dtypes
            Type of all columns, or of some by name; the others keep theirs.
        device
            Where tensors go. "auto" is the rank's GPU if it has one, else the CPU.
        collate_fn
            Converts a dict of arrays to a batch, in place of `dtypes` and `device`.
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
        from hpctrain.data.tensors import torch_maker

        where = self.device if isinstance(device, str) and device == "auto" else device
        made = torch_maker(dtypes, where, collate_fn)
        return self._epochs.passes(
            made if self._dataset.is_plain else lambda batch: made(plain(batch)),
            batch_size=batch_size,
            shuffle=shuffle,
            local_shuffle_buffer_size=local_shuffle_buffer_size,
            local_shuffle_seed=local_shuffle_seed,
            tail="drop" if flag("drop_last", drop_last) else tail,
            prefetch_batches=prefetch_batches,
        )

    def iter_rows(self) -> Passes[dict[str, Any]]:
        """Return the rows of the next epoch, each a dict.

        Not collective. As with `iter_batches`, each pass over the result is the next epoch. It has
        a ``len()``, except after a filter. The position counts these rows; after a filter it counts
        batches of 256 rows, and the rest of one that has begun comes again with its first rows.
        """
        size = 256
        rows = self._epochs.passes(
            rows_of,
            batch_size=size,
            shuffle=False,
            local_shuffle_buffer_size=None,
            local_shuffle_seed=0,
            tail=None,
            prefetch_batches=1,
            by_rows=True,
        )
        if self._tail == "pad":
            count = len(rows) * size
        else:
            count = self._epochs.num_rows_in(size)
        return passes(rows.__iter__, count if self._dataset.keeps_rows else None)

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

        Not collective. The number of batches of an epoch is known. TensorFlow reads ahead, and
        `state_dict` counts these batches too: save it between epochs. Load a state in the middle of
        an epoch before you call this.

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

        batches: SizedPasses[Batch] = self._epochs.passes(
            None,
            batch_size=batch_size,
            shuffle=shuffle,
            local_shuffle_buffer_size=local_shuffle_buffer_size,
            local_shuffle_seed=local_shuffle_seed,
            tail="drop" if flag("drop_last", drop_last) else tail,
            prefetch_batches=prefetch_batches,
        )
        return to_tensorflow(
            batches,
            self.schema(),
            feature_columns,
            label_columns,
            num_batches=None if self._epochs.is_resumed else len(batches),
        )

    def materialize(self) -> Dataset:
        """Return this rank's part, in the order of the dataset, read into memory.

        Not collective.
        """
        return self._dataset.take_ranges(self._epochs.rows()).materialize()

    def state_dict(self) -> dict[str, Any]:
        """Return epoch and position in it, as values for JSON; the same on every rank.

        Not collective. The position counts the batches, or rows, that have been given out.
        """
        return self._epochs.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume after the batches that had been given out, with as many ranks as there are now.

        Not collective, but every rank must load the same state.

        Raises
        ------
        ConfigError
            If the dataset has another number of rows than it had, or another order of rows.
        """
        self._epochs.load_state_dict(state)
