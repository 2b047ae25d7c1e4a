"""Configurations as JSON holds them: exactly, or for people to read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpctrain.checks import shown

_DEEPEST = 100
_PLAIN = (str, int, float, bool, type(None))


def is_plain(value: Any, *, depth: int = 0) -> bool:
    """Return whether JSON holds a value exactly. Pure.

    Parameters
    ----------
    depth
        Of the value. What is very deep counts as not plain: it may hold itself.
    """
    if type(value) in (dict, list) and depth >= _DEEPEST:
        return False
    if type(value) is dict:
        return all(type(k) is str and is_plain(v, depth=depth + 1) for k, v in value.items())
    if type(value) is list:
        return all(is_plain(each, depth=depth + 1) for each in value)
    return type(value) in _PLAIN


def readable(value: Any, *, around: frozenset[int] = frozenset()) -> Any:
    """Return a value that JSON can hold, for people to read. Pure.

    Parameters
    ----------
    around
        The containers that it is in.

    Examples
    --------
    >>> readable({(1, 2): {3}, "a": (4,)})
    {'(1, 2)': '{3}', 'a': [4]}
    """
    if isinstance(value, (Mapping, list, tuple)):
        if id(value) in around or len(around) >= _DEEPEST:
            return "..."
        around |= {id(value)}
        if isinstance(value, Mapping):
            return {_text(k): readable(v, around=around) for k, v in value.items()}
        return [readable(each, around=around) for each in value]
    return value if isinstance(value, _PLAIN) else _text(value)


def _text(value: Any) -> str:
    try:
        return str(value)
    # Whatever a class of the user's does.
    except Exception:
        return shown(value)
