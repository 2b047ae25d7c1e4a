"""Cache of the layouts of HDF5 datasets, so that HDF5 need not open their files again."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from hpctrain.data.layout import Layout
from hpctrain.data.open_files import Identity

_AT_MOST = 40
"""Files in the cache."""

_SETTLED_NS = 2 * 10**9
"""File times advance in steps of 10 ms or of 1 s: two writes may have the same time."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """The type and the layout of a dataset."""

    dtype: np.dtype
    shape: tuple[int, ...]
    layout: Layout


_known: dict[str, tuple[Identity, dict[str, Place]]] = {}


def known_layouts(path: str, identity: Identity | None) -> dict[str, Place] | None:
    """Return the layouts in a file; None if it is unknown or has changed. Not collective."""
    known = _known.get(path)
    return known[1] if known is not None and known[0] == identity else None


def remember_layout(path: str, identity: Identity | None, dataset: str, place: Place) -> None:
    """Keep the layout of a dataset, unless the file has just been written. Not collective.

    Parameters
    ----------
    identity
        Identity of the file, taken before its layout was read.
    """
    if identity is None or time.time_ns() - max(identity.mtime_ns, identity.ctime_ns) < _SETTLED_NS:
        return
    places = known_layouts(path, identity) or {}
    _known.pop(path, None)
    _known[path] = identity, {**places, dataset: place}
    # Another thread may remove the same ones.
    for oldest in list(_known)[:-_AT_MOST]:
        _known.pop(oldest, None)
