"""Transformations of batches after the source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hpctrain.data.batch import Batch, concatenate, num_rows, slice_batch
from hpctrain.data.categories import categories_of, plain
from hpctrain.data.formats import BatchFormat, from_any, to_format
from hpctrain.data.operations.call import Call
from hpctrain.data.schema import check_columns
from hpctrain.errors import ConfigError


class Step(Protocol):
    """A transformation of batches."""

    @property
    def keeps_rows(self) -> bool | None:
        """Whether it keeps the number of rows; None is tried on the first rows."""

    def __call__(self, batch: Batch) -> Batch:
        """Return the transformed batch. Not collective."""


@dataclass(frozen=True)
class MapBatches:
    """Calls a user's function, or an instance of a class."""

    call: Call
    batch_format: BatchFormat = "numpy"
    batch_size: int | None = None
    """Most rows of a batch; None is as many as are read at once."""
    keeps_rows: bool | None = None
    zero_copy_batch: bool = False
    """Whether the function gets read-only arrays instead of its own."""

    def __str__(self) -> str:
        """Return the call that added it."""
        return f"map_batches({self.call.name})"

    def __call__(self, batch: Batch) -> Batch:
        """Return the result of the function for a batch. Not collective."""
        size = self.batch_size or max(num_rows(batch), 1)
        starts = range(0, max(num_rows(batch), 1), size)
        parts = [self._mapped(slice_batch(batch, start, start + size)) for start in starts]
        return concatenate(parts)

    def _mapped(self, batch: Batch) -> Batch:
        given = read_only(batch) if self.zero_copy_batch else batch
        if self.batch_format == "numpy":
            given = plain(given if self.zero_copy_batch else _own(batch))
        made = self.call(to_format(given, self.batch_format))
        # A generator yields several batches for one.
        results = list(made) if isinstance(made, Iterator) else [made]
        mapped = concatenate([from_any(result, keep_categories=True) for result in results or [{}]])
        mapped = {name: _restored(name, array, given, batch) for name, array in mapped.items()}
        if self.keeps_rows:
            check_kept(batch, mapped, str(self))
        return mapped


@dataclass(frozen=True)
class Filter:
    """Keeps rows for which a function of a batch returns true."""

    call: Call
    batch_format: BatchFormat = "numpy"
    keeps_rows: bool = False

    def __call__(self, batch: Batch) -> Batch:
        """Return the rows that are kept. Not collective."""
        mask = np.asarray(self.call(to_format(read_only(batch), self.batch_format)))
        if mask.dtype != bool or mask.shape != (num_rows(batch),):
            raise ConfigError(
                f"filter(): the function returned {mask.dtype}{list(mask.shape)} for a batch of "
                f"{num_rows(batch)} rows. Return a bool for each row, as in "
                f"lambda batch: batch['x'] > 0."
            )
        return {name: array[mask] for name, array in batch.items()}


def check_kept(given: Batch, made: Batch, what: str) -> None:
    """Check that a step kept the number of rows. Not collective.

    Raises
    ------
    ConfigError
        If it did not; the message gives both numbers.
    """
    if num_rows(given) != num_rows(made):
        raise ConfigError(
            f"{what} returned {num_rows(made)} rows for {num_rows(given)}. Return a row for each "
            f"row, or give keeps_rows=False."
        )


def _own(batch: Batch) -> Batch:
    """Return arrays that a function may change.

    Views of a dataset are copied, and so are columns with categories, to detect changed values.
    """
    return {
        name: a if a.flags.writeable and a.dtype.metadata is None else a.copy()
        for name, a in batch.items()
    }


def read_only(batch: Batch) -> Batch:
    """Return read-only views of the arrays. Not collective."""
    views = {name: array.view() for name, array in batch.items()}
    for view in views.values():
        view.flags.writeable = False
    return views


def _restored(name: str, array: np.ndarray, given: Batch, batch: Batch) -> np.ndarray:
    """Return a column with its original type if a function did not change it."""
    before = given.get(name)
    if array is before:
        if categories_of(batch[name].dtype) is None:
            return array if array.flags.writeable else batch[name]
        return batch[name] if array.tobytes() == batch[name].tobytes() else array
    # Without rows, pandas loses the shape of a row.
    if before is not None and before.ndim > 1 == array.ndim and not len(array):
        return batch[name][:0]
    return array


@dataclass(frozen=True)
class Select:
    """Keeps some columns."""

    columns: tuple[str, ...]
    keeps_rows: bool = True

    def __call__(self, batch: Batch) -> Batch:
        """Return the columns that are kept. Not collective."""
        check_columns(self.columns, list(batch))
        return {name: batch[name] for name in self.columns}


@dataclass(frozen=True)
class Drop:
    """Leaves some columns out."""

    columns: tuple[str, ...]
    keeps_rows: bool = True

    def __call__(self, batch: Batch) -> Batch:
        """Return the other columns. Not collective."""
        check_columns(self.columns, list(batch))
        return {name: array for name, array in batch.items() if name not in self.columns}
