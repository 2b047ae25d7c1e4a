"""Which values of a column are missing: the only module that decides it."""

from __future__ import annotations

from typing import Any

_NAMES = ("NAType", "NaTType")


def is_missing(value: Any) -> bool:
    """Return whether a value is missing: None, NaN, NaT or pandas' NA. Pure.

    A text, a list, an array or any other value with a length is not, whatever is in it.

    Examples
    --------
    >>> [is_missing(value) for value in (None, float("nan"), 0.0, "", [float("nan")])]
    [True, True, False, False, False]
    """
    # By name: pandas need not be imported.
    if value is None or type(value).__name__ in _NAMES:
        return True
    # An array is compared element by element, which is neither true nor false.
    return not hasattr(value, "__len__") and bool(value != value)
