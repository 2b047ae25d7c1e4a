"""Arguments of datasets and preprocessors: checked before anything is read.

Each function returns the value in the type that is used, or raises ConfigError with the value, the
rule and an example.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from os import PathLike
from typing import Any

import numpy as np

from hpctrain.checks import check_type, shown
from hpctrain.errors import ConfigError

# NumPy and Arrow count in 64 bits.
_MOST = 2**63 - 1
# Each part is an object that is made at once.
_MOST_PARTS = 100_000


def one_name(what: str, value: Any) -> str:
    """Return the name of a column. Not collective.

    Raises
    ------
    ConfigError
        If it is not a text with a character.
    """
    if not isinstance(value, str) or not value:
        raise ConfigError(
            f"{what} is {shown(value)}, which is not the name of a column. Give one, such as 'x'."
        )
    return value


def list_of_names(what: str, value: Any) -> tuple[str, ...]:
    """Return the names of columns, which may be none. Not collective.

    Raises
    ------
    ConfigError
        If it is not a list of texts, or is a text.
    """
    names = None if isinstance(value, str) else items_of(value)
    if names is None or not all(isinstance(name, str) for name in names):
        meant = [value] if isinstance(value, str) and value else ["x", "y"]
        raise ConfigError(
            f"{what} is {shown(value)}, which is not a list of names. Give one, such as {meant!r}."
        )
    return tuple(names)


def one_or_more_names(what: str, value: Any) -> tuple[str, ...]:
    """Return the names of columns; a text is one of them. Not collective.

    Raises
    ------
    ConfigError
        If it is neither a text nor a list.
    """
    names = (value,) if isinstance(value, str) else items_of(value)
    # Whether there are such columns is checked with the dataset at hand.
    if names is None:
        raise ConfigError(
            f"{what} is {shown(value)}, which is neither the name of a column nor a list of names. "
            f"Give 'x', or ['x', 'y']."
        )
    return tuple(names)


def integer(what: str, value: Any, *, at_least: int) -> int:
    """Return an integer, also of NumPy, as Python's. Not collective.

    Raises
    ------
    ConfigError
        If it is a bool, no integer, too small or too large.
    """
    if not is_integer(value) or value < at_least:
        raise ConfigError(f"{what} is {shown(value)}. Give an integer of {at_least} or more.")
    if value > _MOST:
        raise ConfigError(f"{what} is {shown(value)}. It must be {_MOST} or less.")
    return int(value)


def flag(what: str, value: Any) -> bool:
    """Return True or False, also of NumPy, as Python's. Not collective.

    Anything else has a truth too, often not the one that was meant: ``"False"`` counts as true.

    Raises
    ------
    ConfigError
        If it is something else.
    """
    if not isinstance(value, bool | np.bool_):
        raise ConfigError(f"{what} is {shown(value)}. Give True or False.")
    return bool(value)


def is_integer(value: Any) -> bool:
    """Return whether a value is an integer of Python or NumPy, and no bool. Not collective."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_real(value: Any) -> bool:
    """Return whether a value is a finite number of Python or NumPy, and no bool. Not collective."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        # An integer of hundreds of digits.
        return False


def shuffle_buffer(rows: Any) -> int | None:
    """Return ``local_shuffle_buffer_size``; None is none. Not collective.

    Raises
    ------
    ConfigError
        If it is not a number of rows.
    """
    if rows is None:
        return None
    if not is_integer(rows) or rows < 1:
        raise ConfigError(
            f"local_shuffle_buffer_size={shown(rows)} is not a number of rows. Give an integer of "
            f"1 or more."
        )
    return int(rows)


def row_limit(rows: Any) -> int:
    """Return the most rows that are wanted. Not collective.

    Raises
    ------
    ConfigError
        If it is negative, or not an integer.
    """
    if not is_integer(rows) or int(rows) < 0:
        raise ConfigError(
            f"limit={shown(rows)} is not a number of rows. Give an integer of 0 or more."
        )
    return int(rows)


def num_parts(n: Any) -> int:
    """Return the number of parts to split into. Not collective.

    Raises
    ------
    ConfigError
        If it is not an integer from 1 to 100,000.
    """
    if not is_integer(n) or not 1 <= int(n) <= _MOST_PARTS:
        raise ConfigError(
            f"n={shown(n)} is not a number of parts. Give an integer from 1 to {_MOST_PARTS}."
        )
    return int(n)


def mapping(what: str, value: Any, *, example: str) -> dict[Any, Any]:
    """Return a copy of a dict. Not collective.

    Raises
    ------
    ConfigError
        If it is not one; the message shows an example.
    """
    if not isinstance(value, Mapping):
        raise ConfigError(f"{what} is {shown(value)}, which is not a dict. Give one: {example}.")
    return dict(value)


def function(what: str, value: Any, *, example: str) -> Callable[..., Any]:
    """Return a function. Not collective.

    Raises
    ------
    ConfigError
        If it cannot be called; the message shows an example.
    """
    if not callable(value):
        raise ConfigError(f"{what}={shown(value)} cannot be called. Give {example}.")
    return value  # type: ignore[no-any-return]


def number_type(what: str, value: Any) -> np.dtype[Any]:
    """Return a type of NumPy. Not collective.

    Raises
    ------
    ConfigError
        If NumPy has no such type.
    """
    try:
        # NumPy takes None for float64, and a mapping or a list for a record.
        if value is not None and not isinstance(value, Mapping | list):
            with warnings.catch_warnings():
                # Such as "a", a former name of bytes.
                warnings.simplefilter("error", DeprecationWarning)
                found: np.dtype[Any] = np.dtype(value)
                return found
    except (TypeError, ValueError, SyntaxError, DeprecationWarning):
        pass
    raise ConfigError(
        f"{what} is {shown(value)}, which is not a type of NumPy. Give one, such as numpy.float32 "
        f"or 'float32'."
    )


def path(what: str, value: Any) -> str | PathLike[str]:
    """Return the path of a file or directory. Not collective.

    Raises
    ------
    ConfigError
        If it is neither a text nor a path.
    """
    check_type(what, value, str, PathLike)
    return value  # type: ignore[no-any-return]


def paths(value: Any) -> list[str | PathLike[str]]:
    """Return the paths of a reader: one, or several. Not collective.

    Raises
    ------
    ConfigError
        If one is neither a text nor a path.
    """
    given = [value] if isinstance(value, (str, PathLike)) else items_of(value)
    if given is None or not all(isinstance(one, (str, PathLike)) for one in given):
        raise ConfigError(
            f"paths={shown(value)} is not a path, or a list of paths. Give a file, a directory, a "
            f"pattern such as 'data/*.parquet', or a list of these."
        )
    return given


def items_of(value: Any) -> list[Any] | None:
    """Return the items of a list or another iterable; None of a dict, bytes and all other values.

    Not collective.
    """
    if isinstance(value, Mapping | bytes) or not isinstance(value, Iterable):
        return None
    return list(value)
