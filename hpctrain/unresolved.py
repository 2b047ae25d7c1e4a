"""`Unresolved`: what stands for a value that a sweep chooses, and where there is one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from types import SimpleNamespace
from typing import Any

DEEPEST = 100
"""So many levels may a configuration have: code that walks through one calls itself for each."""
Path = tuple[Any, ...]

_ATOMS = frozenset({str, bytes, int, float, bool, type(None)})


class Unresolved:
    """Base of the domains of `hpctrain.tune`: a configuration takes one in place of any value."""


def is_unresolved(value: object) -> bool:
    """Return whether a value is a domain, also as ``{"grid_search": [...]}``. Not collective."""
    return isinstance(value, Unresolved) or is_grid_mapping(value)


def is_grid_mapping(value: object) -> bool:
    """Return whether a value is Ray Tune's form of a grid in JSON. Not collective."""
    return isinstance(value, dict) and len(value) == 1 and "grid_search" in value


def find_unresolved(value: Any) -> Iterator[tuple[Path, Any]]:
    """Yield the domains in a value, with the keys, indices and fields that lead there.

    Not collective. Looks into dicts, lists, tuples and dataclasses. Every configuration comes by:
    it may be large, deep, or hold itself.

    Examples
    --------
    >>> list(find_unresolved({"a": [1, {"grid_search": [2, 3]}]}))
    [(('a', 1), {'grid_search': [2, 3]})]
    """
    # What is yet to be looked at, the next one last, each with the containers around it.
    rest: list[tuple[Any, Path, frozenset[int]]] = [(value, (), frozenset())]
    while rest:
        value, path, around = rest.pop()
        if is_unresolved(value):
            yield path, value
        elif id(value) not in around:
            around |= {id(value)}
            inside = [pair for pair in children(value) if type(pair[1]) not in _ATOMS]
            rest += [(each, (*path, key), around) for key, each in reversed(inside)]


def children(value: Any) -> list[tuple[Any, Any]]:
    """Return what a container holds, by key, index or name of the field. Not collective."""
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, (list, tuple)):
        return list(enumerate(value))
    if is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name, None)) for field in fields(value)]
    return []


def find_unseen(value: Any) -> tuple[Path, Any] | None:
    """Return a domain where `find_unresolved` does not look, and what leads there; None if none.

    Not collective. Looks into sets and the attributes of objects: of namespaces all that is inside,
    of others they themselves, as objects may be large.

    Examples
    --------
    >>> find_unseen({"a": {Unresolved()}})[0]
    ('a', 0)
    """
    rest: list[tuple[Any, Path, bool]] = [(value, (), False)]
    # What is inside an object may be in a container, too, where it is looked for.
    seen: set[tuple[int, bool]] = set()
    while rest:
        value, path, is_unseen = rest.pop()
        if is_unseen and isinstance(value, Unresolved):
            return path, value
        if (id(value), is_unseen) not in seen:
            seen.add((id(value), is_unseen))
            unseen = _unseen_children(value)
            inside = [(k, v) for k, v in unseen or children(value) if type(v) not in _ATOMS]
            rest += [(each, (*path, key), is_unseen or bool(unseen)) for key, each in inside]
    return None


def _unseen_children(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, (set, frozenset)):
        return list(enumerate(value))
    if isinstance(value, (Mapping, list, tuple)) or is_dataclass(value) or callable(value):
        return []
    try:
        inside = object.__getattribute__(value, "__dict__").items()
    except AttributeError:
        return []
    is_open = isinstance(value, SimpleNamespace)
    return [(key, each) for key, each in inside if is_open or isinstance(each, Unresolved)]


def find_too_deep(value: Any) -> Path | None:
    """Return the keys that lead below `DEEPEST` levels: a value that holds itself has no end.

    Not collective. None if there is no such place.

    Examples
    --------
    >>> itself = {}
    >>> itself["a"] = [itself]
    >>> find_too_deep(itself)[:4]
    ('a', 0, 'a', 0)
    """
    rest: list[tuple[Any, Path]] = [(value, ())]
    while rest:
        value, path = rest.pop()
        if len(path) > DEEPEST:
            return path
        inside = [pair for pair in children(value) if type(pair[1]) not in _ATOMS]
        rest += [(each, (*path, key)) for key, each in inside]
    return None
