"""Categorical values of columns."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from hpctrain.checks import shown
from hpctrain.data.arguments import is_integer, mapping
from hpctrain.data.times import as_time, nanoseconds, times_of
from hpctrain.errors import ConfigError
from hpctrain.preprocessors.batches import Array

_TIMES = (datetime.date, datetime.timedelta, np.datetime64, np.timedelta64)

# The types of nearly all columns.
_PLAIN = frozenset((str, int, float, bool))


def is_list(value: Any) -> bool:
    """Return whether a value is a list, a set or an array. Not collective."""
    return isinstance(value, (list, tuple, set, frozenset, np.ndarray))


def elements_of(values: Array) -> list[Any]:
    """Return the values of a column as Python's types, lists as tuples, times as NumPy's types.

    Not collective.
    """
    if values.dtype.kind in "Mm" and values.ndim == 1:
        return times_of(values)
    return [hashable(value) for value in values.tolist()]


def count_elements(values: Array) -> Counter[Any]:
    """Return how often each value of a column occurs, as Python's types. Not collective."""
    if values.ndim > 1:
        return Counter(elements_of(values))
    if values.dtype.kind in "biuf":
        distinct, counts = np.unique(values, return_counts=True)
        return Counter(dict(zip(distinct.tolist(), counts.tolist(), strict=True)))
    if values.dtype.kind in "Mm":
        return Counter(elements_of(values))
    try:
        # Most columns of objects hold texts, and counting them is faster than checking each.
        counted = Counter(values.tolist())
    except TypeError:
        return Counter(elements_of(values))
    found: Counter[Any] = Counter()
    for value, times in counted.items():
        found[hashable(value)] += times
    return found


def count_in_lists(values: Array) -> Counter[Any]:
    """Return how often each value occurs in the lists of a column, or outside of lists.

    Not collective.
    """
    if values.dtype != object:
        return count_elements(values.reshape(-1))
    counted = count_elements(values)
    if any(isinstance(value, tuple) for value in counted):
        return Counter(elements_in_lists(values))
    return counted


def elements_in_lists(values: Array) -> list[Any]:
    """Return the elements of the lists in a column, and values outside of lists.

    Not collective.
    """
    found: list[Any] = []
    for value in values.tolist():
        if is_list(value):
            found += [hashable(element) for element in value]
        else:
            found.append(hashable(value))
    return found


def hashable(value: Any) -> Any:
    """Return a value in a form that can be a key. Not collective."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, _TIMES):
        return as_time(value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, (set, frozenset)):
        # Each process iterates over a set in another order.
        value = in_order(map(hashable, value))
    return tuple(hashable(part) for part in value) if isinstance(value, (list, tuple)) else value


def in_order(values: Iterable[Any]) -> list[Any]:
    """Return values sorted; if types differ, numbers come first, then by the name of the type.

    Not collective. The order is the same on every rank, whatever the order of reading.
    """
    values = list(values)
    try:
        if any(isinstance(value, np.datetime64 | np.timedelta64) for value in values):
            return sorted(values, key=nanoseconds)
        return sorted(values)
    except TypeError:
        return sorted(values, key=_place_among_types)


def _place_among_types(value: Any) -> tuple[str, float, str]:
    if isinstance(value, (int, float)):
        return "", value, ""
    return type(value).__name__, 0.0, repr(value)


def most_frequent(counts: Mapping[Any, int], limit: int | None) -> list[Any]:
    """Return the most frequent values, ties in sorted order; a limit of None returns all.

    Not collective.
    """
    return sorted(in_order(counts), key=lambda value: -counts[value])[:limit]


def codes_of(values: Array, codes: Mapping[Any, int]) -> Array:
    """Return the code of each row's value, -1 for a value without a code. Not collective."""
    if values.dtype.kind in "biuf" and values.ndim == 1:
        distinct, inverse = np.unique(values, return_inverse=True)
        known = [codes.get(value, -1) for value in distinct.tolist()]
        found: Array = np.array(known, dtype=np.int64)[inverse]
        return found
    if values.dtype.kind in "Mm" and values.ndim == 1:
        distinct, inverse = np.unique(values, return_inverse=True)
        known = [codes.get(value, -1) for value in times_of(distinct)]
        return np.array(known, dtype=np.int64)[inverse]
    if values.ndim == 1:
        try:
            plain = values.tolist()
            found = np.array([codes.get(value, -1) for value in plain], dtype=np.int64)
            for row in np.flatnonzero(found < 0):
                # The dictionary has sets as tuples, and times as NumPy's.
                found[row] = codes.get(hashable(plain[row]), -1)
            return found
        except TypeError:
            # Lists, which are not hashable.
            pass
    return np.array([codes.get(value, -1) for value in elements_of(values)], dtype=np.int64)


def check_limits(columns: Sequence[str], limits: Mapping[str, int] | None) -> dict[str, int]:
    """Return limits by column.

    Not collective.

    Raises
    ------
    ConfigError
        If one has no column, or is below 1.
    """
    given = {} if limits is None else mapping("max_categories", limits, example="{'x': 10}")
    for column, limit in given.items():
        if column not in columns or not _is_count(limit):
            raise ConfigError(
                f"max_categories={shown(given)}: {column!r} is not in "
                f"columns={list(columns)}, or its limit is below 1. Give integers of 1 or more for "
                f"some of the columns."
            )
    return given


def _is_count(limit: object) -> bool:
    return isinstance(limit, int) and is_integer(limit) and limit >= 1
