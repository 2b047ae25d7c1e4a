"""Rows as dicts, and batches of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any

import numpy as np

from hpctrain.data.batch import Batch
from hpctrain.data.formats import as_column
from hpctrain.data.types import with_missing
from hpctrain.errors import ConfigError

ITEM = "item"
"""Name of the column of items that are not dicts."""

_UNITS = {datetime: "datetime64[us]", date: "datetime64[D]", timedelta: "timedelta64[us]"}


def batch_of_items(items: Sequence[Any]) -> Batch:
    """Return items as a batch: dicts are rows, others values of the column ``item``.

    Not collective.

    Raises
    ------
    ConfigError
        If some are dicts and others are not.
    """
    rows = [isinstance(item, Mapping) for item in items]
    if any(rows) and not all(rows):
        at = rows.index(not rows[0])
        raise ConfigError(
            f"from_items(): item 0 is a {type(items[0]).__name__} and item {at} a "
            f"{type(items[at]).__name__}. Give only dicts, or no dicts."
        )
    return batch_of_rows(items if any(rows) else [{ITEM: item} for item in items])


def batch_of_rows(rows: Sequence[Mapping[str, Any]]) -> Batch:
    """Return rows as a batch; a column that a row lacks is missing in it. Not collective."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {str(name): _column(str(name), [row.get(name) for row in rows]) for name in names}


def _column(name: str, values: list[Any]) -> np.ndarray:
    kinds = set(map(type, values)) - {type(None)}
    if kinds == {bytes}:
        # NumPy's bytes type would drop zeros at the end, and count as text.
        array = np.empty(len(values), dtype=object)
        array[:] = values
        return array
    if len(kinds) == 1 and (unit := _UNITS.get(next(iter(kinds)))) and _is_naive(values):
        return np.array(values, dtype=unit)
    if any(hasattr(value, "detach") for value in values):
        values = [v.detach().cpu().numpy() if hasattr(v, "detach") else v for v in values]
    try:
        array = as_column(values)
    except ConfigError as error:
        raise ConfigError(f"column {name!r}: {error}") from error
    return with_missing(array) if _misses_numbers(kinds, values, array) else array


def _is_naive(values: Sequence[Any]) -> bool:
    return all(getattr(value, "tzinfo", None) is None for value in values)


def _misses_numbers(kinds: set[type], values: Sequence[Any], array: np.ndarray) -> bool:
    if array.dtype != object or array.ndim != 1 or not kinds:
        return False
    numbers = (int, float, np.integer, np.floating)
    return all(issubclass(kind, numbers) and kind is not bool for kind in kinds)
