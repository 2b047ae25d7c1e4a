"""Batches: dicts of arrays that have a row per element, ``{"x": [rows, 28], "y": [rows]}``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from hpctrain.data import types
from hpctrain.errors import ConfigError

Batch: TypeAlias = "dict[str, np.ndarray]"


def num_rows(batch: Mapping[str, np.ndarray]) -> int:
    """Return the number of rows of a batch. Not collective."""
    return len(next(iter(batch.values()))) if batch else 0


def check_batch_size(batch_size: Any) -> None:
    """Check that a batch size is a number of rows. Not collective.

    Raises
    ------
    ConfigError
        If it is not an integer of one or more.
    """
    if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1:
        raise ConfigError(
            f"batch_size={batch_size!r} is not a number of rows. Give an integer of 1 or more."
        )


def check_lengths(batch: Mapping[str, np.ndarray]) -> None:
    """Check that all columns have the same length. Not collective.

    Raises
    ------
    ConfigError
        If they differ; the message gives the length of each.
    """
    if len({len(array) for array in batch.values()}) > 1:
        lengths = {name: len(array) for name, array in batch.items()}
        raise ConfigError(
            f"the columns have different numbers of rows: "
            f"{', '.join(f'{name!r} {length}' for name, length in lengths.items())}. Give each "
            f"column one value per row."
        )


def flat_rows(values: np.ndarray) -> np.ndarray:
    """Return a column with each row as a vector. Not collective. No copy if that is possible."""
    return values.reshape(len(values), int(np.prod(values.shape[1:], dtype=np.int64)))


def concatenate(batches: Sequence[Batch]) -> Batch:
    """Return batches one after another, as one.

    Not collective.

    Raises
    ------
    ConfigError
        If their columns differ, or their types cannot be joined without changing a value.
    """
    # A function that gets an empty batch may return no columns.
    batches = [batch for batch in batches if batch] or batches[:1]
    if len(batches) == 1:
        return batches[0]
    first = batches[0]
    if unlike := [batch for batch in batches if batch.keys() != first.keys()]:
        raise ConfigError(
            f"batches have different columns: {list(first)} and {list(unlike[0])}. Return the same "
            f"columns for every batch."
        )
    return {name: types.join([b[name] for b in batches], name=name) for name in first}


def slice_batch(batch: Batch, start: int, stop: int) -> Batch:
    """Return some rows of a batch, without copying them. Not collective."""
    return {name: array[start:stop] for name, array in batch.items()}
