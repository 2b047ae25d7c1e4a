"""Columns of a table of reports: which type holds all values of one. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from hpctrain.metric_names import as_float

_SIGNED = range(-(2**63), 2**63)
_UNSIGNED = range(2**64)


class Kind(Enum):
    """Type of a column."""

    BOOLEAN = "boolean"
    """Every value is true or false."""
    INTEGER = "integer"
    """Of 64 bits, with a sign. True is 1 where it is among numbers."""
    UNSIGNED = "unsigned"
    """Of 64 bits, without one: larger ones are among them, such as seeds."""
    NUMBER = "number"
    """A float of 64 bits, also for integers that no other type holds, and without any value."""
    TEXT = "text"
    """Values that are no text, as a number or a list in another report, are JSON."""


@dataclass(kw_only=True)
class Column:
    """The type of a column, by the values that it is to hold."""

    _has_boolean: bool = False
    _has_integer: bool = False
    _has_float: bool = False
    _has_other: bool = False
    _least: int = 0
    _most: int = 0

    def see(self, value: Any) -> None:
        """Note that there is a value. Not collective."""
        kind = type(value)
        if kind is float:
            self._has_float = True
        elif kind is int:
            self._has_integer = True
            if value > self._most:
                self._most = value
            elif value < self._least:
                self._least = value
        elif kind is bool:
            self._has_boolean = True
        elif value is not None:
            self._has_other = True

    @property
    def kind(self) -> Kind:
        """The type that holds all values so far."""
        if self._has_other:
            return Kind.TEXT
        if self._has_float:
            return Kind.NUMBER
        if self._has_integer:
            for kind, numbers in ((Kind.INTEGER, _SIGNED), (Kind.UNSIGNED, _UNSIGNED)):
                if self._least in numbers and self._most in numbers:
                    return kind
            return Kind.NUMBER
        return Kind.BOOLEAN if self._has_boolean else Kind.NUMBER


def convert(value: Any, kind: Kind) -> Any:
    """Return a value as a column of a type has it; None if it cannot. Not collective.

    Examples
    --------
    >>> convert(1, Kind.NUMBER), convert([1, "a"], Kind.TEXT), convert("a", Kind.INTEGER)
    (1.0, '[1, "a"]', None)
    """
    if value is None:
        return None
    if kind is Kind.TEXT:
        return clean(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
    if not isinstance(value, (bool, int, float)):
        return None
    if kind is Kind.BOOLEAN:
        return value if isinstance(value, bool) else None
    if kind is Kind.NUMBER:
        return as_float(value)
    if isinstance(value, float) or value not in (_SIGNED if kind is Kind.INTEGER else _UNSIGNED):
        return None
    return int(value)


def clean(text: str) -> str:
    r"""Return a text that is UTF-8: half of a surrogate pair is written out. Not collective.

    Examples
    --------
    >>> clean("größe\ud800")
    'größe\\ud800'
    """
    return text.encode(errors="backslashreplace").decode()


def name_columns(
    metrics: Iterable[str], config: Iterable[str], taken: Iterable[str]
) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return the columns of metrics and of the values of a configuration. Not collective.

    Parameters
    ----------
    metrics, config
        Their names.
    taken
        Names of other columns. A metric of such a name is ``metrics/NAME``.

    Examples
    --------
    >>> name_columns(["loss", "time"], ["lr"], ["time"])
    ({'loss': 'loss', 'time': 'metrics/time'}, {'lr': 'config/lr'})
    """
    used = set(taken)

    def names(of: Iterable[str], prefix: str, again: str) -> dict[str, str]:
        found = {}
        for name in of:
            column = clean(f"{prefix}{name}")
            while column in used:
                column = f"{again}{column}"
            used.add(column)
            found[name] = column
        return found

    of_config = names(config, "config/", "config/")
    return names(metrics, "", "metrics/"), of_config
