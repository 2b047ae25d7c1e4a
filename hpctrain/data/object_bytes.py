"""About how many bytes the objects of a column take, which NumPy counts as pointers."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

OVERHEAD_BYTES = sys.getsizeof("")
"""Bytes of a text in memory besides its characters."""

_MEASURED = 100


def object_bytes(array: np.ndarray) -> int:
    """Return the mean size of the first objects of an array, 0 for numbers.

    Not collective.

    Examples
    --------
    >>> object_bytes(np.arange(3)), object_bytes(np.array([b"x" * 967], dtype=object))
    (0, 1000)
    """
    if not array.dtype.hasobject or not array.size:
        return 0
    sizes = [_size(value) for value in array.reshape(-1)[:_MEASURED].tolist()]
    return sum(sizes) // len(sizes)


def _size(value: Any) -> int:
    if isinstance(value, Mapping):
        value = [*value, *value.values()]
    if isinstance(value, list | tuple):
        return sys.getsizeof(value) + sum(map(_size, value))
    # That of an array does not count what it is a view of.
    return max(sys.getsizeof(value), int(getattr(value, "nbytes", 0)))
