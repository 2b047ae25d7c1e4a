"""Codes of categories, the same in training and in prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpctrain.missing import is_missing

Array = np.ndarray[Any, Any]


def encode_categories(
    batch: Mapping[str, Any], categories: Mapping[str, Sequence[Any]]
) -> dict[str, Any]:
    """Return a batch with codes in place of categories, NaN for values unknown to the model.

    Not collective.
    """
    encoded = {n: encode(batch[n], categories[n]) for n in batch.keys() & categories.keys()}
    return {**batch, **encoded}


def encode(values: Any, known: Sequence[Any]) -> Array:
    """Return the codes of values: their index in `known`, NaN for all others. Not collective."""
    code = {value: float(place) for place, value in enumerate(known)}
    if is_categorical(values):
        table = [code.get(plain(value), np.nan) for value in values.cat.categories]
        # The code of a missing value is -1, the last place of the table.
        codes: Array = values.cat.codes.to_numpy()
        encoded: Array = np.asarray([*table, np.nan])[codes]
        return encoded
    listed = map(plain, np.asarray(values).tolist())
    return np.fromiter(
        (np.nan if is_missing(value) else code.get(value, np.nan) for value in listed),
        dtype=np.float64,
        count=len(values),
    )


def is_categorical(values: Any) -> bool:
    """Return whether a column has pandas' category type. Not collective."""
    return str(getattr(values, "dtype", "")) == "category"


def plain(value: Any) -> Any:
    """Return a value as one that JSON can store: bytes as text. Not collective."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value.item() if isinstance(value, np.generic) else value
