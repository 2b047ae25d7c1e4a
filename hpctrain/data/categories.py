"""Categories: the values that a column may have, kept in the type of the column.

A column of pandas' category type, or of Arrow's dictionary type, is an array of its values like any
other, so the code that slices, shuffles and joins batches does not handle categories. They are in
the metadata of the array's NumPy type, which its slices keep. A batch in NumPy format has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpctrain.errors import ConfigError
from hpctrain.missing import is_missing

_KEY = "hpctrain.categories"


@dataclass(frozen=True, kw_only=True, eq=False)
class Categories:
    """The values that a column may have, in their order."""

    values: np.ndarray
    """Distinct, without a missing value."""
    ordered: bool = False
    """Whether each value is less than the next."""

    def __eq__(self, other: object) -> bool:
        """Return whether these are the same values in the same order."""
        return (
            isinstance(other, Categories)
            and self.ordered == other.ordered
            and self.values.dtype == other.values.dtype
            and np.array_equal(self.values, other.values)
        )

    __hash__ = None  # type: ignore[assignment]

    def codes(self, array: np.ndarray) -> np.ndarray:
        """Return the index of each row's value among the categories, -1 where it is missing.

        Not collective.

        Raises
        ------
        ConfigError
            If a row has a value that is not a category.
        """
        places = {value: place for place, value in enumerate(self.values.tolist())}
        rows = array.tolist()
        codes = np.array([places.get(value, -1) for value in rows], dtype=np.int32)
        for row in np.flatnonzero(codes < 0).tolist():
            if not is_missing(rows[row]):
                raise ConfigError(
                    f"{rows[row]!r} is not one of the categories {list(places)[:10]}, which were "
                    f"read when the dataset was made. Its file has changed since: make the dataset "
                    f"again."
                )
        return codes


def categories_of(dtype: np.dtype) -> Categories | None:
    """Return the categories of a column's type, None if it has none. Not collective."""
    return None if dtype.metadata is None else dtype.metadata.get(_KEY)


def with_categories(dtype: np.dtype, categories: Categories | None) -> np.dtype:
    """Return a type with these categories and no others. Not collective.

    Categories are left out if there are none, or if they are not distinct.
    """
    if categories is not None and _are_distinct(categories.values):
        return np.dtype(without_categories(dtype), metadata={_KEY: categories})
    return without_categories(dtype)


def without_categories(dtype: np.dtype) -> np.dtype:
    """Return a type without its categories. Not collective."""
    return dtype if categories_of(dtype) is None else np.dtype(dtype.str)


def plain(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return a batch without categories. Not collective. No value is copied."""
    if not any(array.dtype.metadata for array in batch.values()):
        return batch
    return {name: array.view(without_categories(array.dtype)) for name, array in batch.items()}


def union(found: Sequence[Categories | None]) -> Categories | None:
    """Return the union of the categories of all parts of a column, or None.

    Not collective. None if a part has no categories, or if ordered categories differ.
    """
    first, *others = found
    if first is None or all(other is first or other == first for other in others):
        return first
    known = [categories for categories in found if categories is not None]
    unlike = any(c.values.dtype != first.values.dtype or c.ordered for c in known)
    if len(known) < len(found) or first.ordered or unlike:
        return None
    values = np.concatenate([categories.values for categories in known])
    places = {value: place for place, value in reversed([*enumerate(values.tolist())])}
    return Categories(values=values[sorted(places.values())])


def _are_distinct(values: np.ndarray) -> bool:
    try:
        distinct = {*values.tolist()} if values.ndim == 1 else set()
    except TypeError:
        return False
    return bool(distinct) and len(distinct) == len(values)


def codes_of(name: str, array: np.ndarray, categories: Categories) -> np.ndarray:
    """Return the index of each value of a column among its categories, -1 where it is missing.

    Not collective.

    Raises
    ------
    ConfigError
        If a value is not one of them; the message names the column.
    """
    try:
        return categories.codes(array)
    except ConfigError as error:
        raise ConfigError(f"column {name!r}: {error}") from error
