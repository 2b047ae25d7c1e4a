"""Datasets of numbers, or of a list: Ray Data's ``range`` and ``from_items``."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpctrain.checks import shown
from hpctrain.data.arguments import is_integer, items_of
from hpctrain.data.batch import Batch
from hpctrain.data.dataset import Dataset
from hpctrain.data.memory import MemorySource
from hpctrain.data.operations.items import batch_of_items
from hpctrain.data.operations.scheduling import OF_READS, say_no_meaning
from hpctrain.data.schema import Column, Schema
from hpctrain.data.source import SingleRows
from hpctrain.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class RangeSource(SingleRows):
    """The numbers from 0, each in all elements of a row; computed when they are read."""

    num_rows: int
    column: str
    shape: tuple[int, ...] = ()

    @property
    def schema(self) -> Schema:
        """One column."""
        column = Column(dtype=np.dtype(np.int64), shape=self.shape)
        return Schema(((self.column, column),))

    @property
    def memory_bytes(self) -> int:
        """Always 0: rows are computed when they are read."""
        return 0

    def read(self, rows: builtins.range, columns: Sequence[str] | None) -> Batch:
        """Return rows, in order. Not collective."""
        numbers = np.arange(rows.start, rows.stop).reshape(-1, *(1 for _ in self.shape))
        values = np.broadcast_to(numbers, (len(rows), *self.shape)).copy()
        return dict.fromkeys(self.schema.select(columns), values)


def from_items(items: Sequence[Any], **scheduling: Any) -> Dataset:
    """Return a dataset of a list in memory.

    Not collective.

    Parameters
    ----------
    items
        Dicts are rows, by column; a column that a row lacks is missing in it. Other items are the
        values of the column ``item``.
    **scheduling
        As in `hpctrain.data.read_parquet`.

    Raises
    ------
    ConfigError
        If some are dicts and others are not.
    """
    say_no_meaning("from_items()", scheduling, OF_READS)
    given = items_of(items)
    if given is None or isinstance(items, str):
        raise ConfigError(
            f"from_items({shown(items)}) is not a list of rows or values. Give one, such as "
            f"[{{'x': 1}}, {{'x': 2}}]; from_numpy() takes a dict of arrays."
        )
    return Dataset(MemorySource(arrays=batch_of_items(given)))


def range(
    n: int,
    **scheduling: Any,
) -> Dataset:
    """Return a dataset of the numbers from 0 to ``n - 1``, in the column ``id``.

    Not collective.

    Parameters
    ----------
    n
        Number of rows.
    **scheduling
        As in `hpctrain.data.read_parquet`.

    Raises
    ------
    ConfigError
        If it is not an integer of 0 or more.
    """
    say_no_meaning("range()", scheduling, OF_READS)
    return Dataset(RangeSource(num_rows=_count(n), column="id"))


def range_tensor(
    n: int,
    *,
    shape: Sequence[int] = (1,),
    **scheduling: Any,
) -> Dataset:
    """Return a dataset of arrays, in the column ``data``; all elements of a row are its number.

    Not collective.

    Parameters
    ----------
    n
        Number of rows.
    shape
        Shape of a row.
    **scheduling
        As in `hpctrain.data.read_parquet`.

    Raises
    ------
    ConfigError
        If it is not an integer of 0 or more.
    """
    say_no_meaning("range_tensor()", scheduling, OF_READS)
    lengths = items_of(shape)
    if lengths is None or not all(is_integer(length) and length >= 0 for length in lengths):
        raise ConfigError(
            f"range_tensor(shape={shown(shape)}) is not the shape of a row. Give integers of 0 or "
            f"more, such as (28, 28)."
        )
    return Dataset(RangeSource(num_rows=_count(n), column="data", shape=tuple(map(int, lengths))))


def _count(n: Any) -> int:
    if not is_integer(n) or n < 0:
        raise ConfigError(f"n={shown(n)} is not a number of rows. Give an integer of 0 or more.")
    return int(n)
