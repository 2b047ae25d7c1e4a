"""A digest of what decides the order of a source's rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple
from typing import Any

import xxhash

from hpctrain.data.stream import Mixing

# Of shuffled, selected and sampled rows.
_OF_A_SOURCE = ("mixing", "each_epoch", "seed", "ranges", "fraction")
# Of what sorts or groups rows.
_OF_AN_OPERATION = ("keys", "descending")


def digest_order(source: Any) -> str | None:
    """Return a digest of the shuffles, selections, samples and sorts of a source.

    Not collective. It covers neither files nor columns: the same rows may come from elsewhere.

    Returns
    -------
    str or None
        None if the rows have the order of their files.
    """
    described = _describe(source)
    return xxhash.xxh3_64_hexdigest(repr(described).encode()) if described else None


def _describe(source: Any) -> list[Any]:
    own = _values(source, _OF_A_SOURCE)
    own += _values(getattr(source, "operation", None), _OF_AN_OPERATION)
    inner = [source.source] if hasattr(source, "source") else getattr(source, "parts", ())
    below = [_describe(part) for part in inner]
    return [*own, below] if own or any(below) else []


def _values(owner: Any, names: Sequence[str]) -> list[Any]:
    found = [(name, getattr(owner, name)) for name in names if hasattr(owner, name)]
    return [(n, astuple(value) if isinstance(value, Mixing) else value) for n, value in found]
