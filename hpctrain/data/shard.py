"""One rank's part of a plain dataset: a list, an array, a data frame, a torch dataset."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

from hpctrain.data.passes import Passes
from hpctrain.errors import ConfigError


class DatasetShard(Sequence[Any]):
    """A contiguous part of an indexable dataset, without copying it.

    It has ``len()`` and integer indices, so it is a map-style dataset for torch's DataLoader too.
    """

    def __init__(self, dataset: Any, rows: range) -> None:
        self._dataset = dataset
        self._rows = rows

    def __len__(self) -> int:
        """Return the number of rows of this shard."""
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        """Return a row, or a shard of this shard."""
        if isinstance(index, slice):
            return DatasetShard(self._dataset, self._rows[index])
        return self._dataset[self._rows[index]]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return several rows; torch's DataLoader calls this for a batch."""
        return items_of(self._dataset, [self._rows[index] for index in indices])

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the rows."""
        return (self._dataset[row] for row in self._rows)


def items_of(dataset: Any, indices: Sequence[int]) -> list[Any]:
    """Return several items of a map-style dataset, in one call if it has ``__getitems__``.

    Not collective.

    Raises
    ------
    ConfigError
        If it returns another number of items.
    """
    batched = getattr(dataset, "__getitems__", None)
    if batched is None:
        return [dataset[index] for index in indices]
    items = list(batched(list(indices)))
    if len(items) != len(indices):
        raise ConfigError(
            f"__getitems__() of {type(dataset).__name__} returned {len(items)} items for "
            f"{len(indices)} indices. Return a list with an item for each index."
        )
    return items


def shard_rows(num_rows: int, *, rank: int, world_size: int) -> range:
    """Return the rows of a rank: contiguous, every row on one rank, sizes differ by one at most.

    Not collective.

    Examples
    --------
    >>> [len(shard_rows(10, rank=rank, world_size=4)) for rank in range(4)]
    [3, 3, 2, 2]
    """
    size, rest = divmod(num_rows, world_size)
    start = rank * size + min(rank, rest)
    return range(start, start + size + (rank < rest))


def is_dataset(dataset: Any) -> bool:
    """Return whether something is a `Dataset`. Not collective."""
    # An instance implies that its module is imported; the check must not import NumPy.
    module = sys.modules.get("hpctrain.data.dataset")
    return module is not None and isinstance(dataset, module.Dataset)


def is_iterator(dataset: Any) -> bool:
    """Return whether something is a `DataIterator`. Not collective."""
    module = sys.modules.get("hpctrain.data.iterator")
    return module is not None and isinstance(dataset, module.DataIterator)


def shard_dataset(dataset: Any, *, rank: int, world_size: int) -> Any:
    """Return one rank's part of a dataset.

    Not collective.

    Parameters
    ----------
    dataset
        A `Dataset`, whose part is a `DataIterator`; a NumPy array or torch tensor, whose part is a
        view; a pandas data frame; anything with ``len()`` and integer indices; or an iterable, of
        which a rank takes every `world_size`-th element in each pass.

    Raises
    ------
    ConfigError
        If it is none of these.
    """
    if is_dataset(dataset):
        return dataset.shard(rank=rank, world_size=world_size)
    if hasattr(dataset, "iloc"):
        rows = shard_rows(len(dataset), rank=rank, world_size=world_size)
        return dataset.iloc[rows.start : rows.stop]
    if hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__"):
        rows = shard_rows(len(dataset), rank=rank, world_size=world_size)
        if hasattr(dataset, "shape"):
            return dataset[rows.start : rows.stop]
        return DatasetShard(dataset, rows)
    if hasattr(dataset, "__iter__"):
        return Passes(partial(_every, dataset, rank, world_size))
    raise ConfigError(
        f"a dataset of type {type(dataset).__name__} cannot be split: it has neither rows nor an "
        f"iterator. Leave it whole with DataConfig(datasets_to_split=[...])."
    )


def _every(iterable: Iterable[Any], first: int, step: int) -> Iterator[Any]:
    return islice(iter(iterable), first, None, step)
