"""Values of columns that are names for things rather than numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from hpctrain.preprocessors.batches import Array


def is_missing(value: Any) -> bool:
    """Return whether a value stands for none: None, NaN, NaT. Not collective."""
    return value is None or (not isinstance(value, (str, bytes, list, tuple)) and value != value)


def elements_of(values: Array) -> list[Any]:
    """Return the values of a column as Python's own, lists as tuples. Not collective."""
    return [hashable(value) for value in values.tolist()]


def elements_in_lists(values: Array) -> list[Any]:
    """Return the elements of the lists in a column, and values that are in none.

    Not collective.
    """
    found: list[Any] = []
    for value in values.tolist():
        if isinstance(value, (list, tuple, set, np.ndarray)):
            found += [hashable(element) for element in value]
        else:
            found.append(hashable(value))
    return found


def hashable(value: Any) -> Any:
    """Return a value in a form that a dictionary takes. Not collective."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        value = value.tolist()
    return tuple(hashable(part) for part in value) if isinstance(value, (list, tuple)) else value


def in_order(values: Iterable[Any]) -> list[Any]:
    """Return values sorted; of unlike types numbers first, then by the name of the type.

    Not collective. The order is the same on every rank, whatever the order they came in.
    """
    values = list(values)
    try:
        return sorted(values)
    except TypeError:
        return sorted(values, key=_place_among_types)


def _place_among_types(value: Any) -> tuple[str, float, str]:
    if isinstance(value, (int, float)):
        return "", value, ""
    return type(value).__name__, 0.0, repr(value)


def most_frequent(counts: Mapping[Any, int], limit: int | None) -> list[Any]:
    """Return the values that occur most often, of equal ones the first in order; None: all.

    Not collective.
    """
    return sorted(in_order(counts), key=lambda value: -counts[value])[:limit]


def codes_of(values: Array, codes: Mapping[Any, int]) -> Array:
    """Return the code of each row's value, -1 for one that has none. Not collective."""
    if values.dtype.kind in "biufUS" and values.ndim == 1:
        distinct, inverse = np.unique(values, return_inverse=True)
        known = [codes.get(value, -1) for value in distinct.tolist()]
        found: Array = np.array(known, dtype=np.int64)[inverse]
        return found
    return np.array([codes.get(value, -1) for value in elements_of(values)], dtype=np.int64)
