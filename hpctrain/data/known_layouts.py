"""Layouts of datasets in HDF5 files that were read before, so HDF5 need not open them again."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from hpctrain.data.layout import Layout
from hpctrain.data.open_files import Identity

_AT_MOST = 40
"""Files that are remembered."""

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
    """Return what is known of a file; None if it is another one, or has changed. Not collective."""
    known = _known.get(path)
    return known[1] if known is not None and known[0] == identity else None


def remember_layout(path: str, identity: Identity | None, dataset: str, place: Place) -> None:
    """Keep the layout of a dataset, unless the file has just been written. Not collective.

    Parameters
    ----------
    identity
        Of the file, from before it was asked for the dataset.
    """
    if identity is None or time.time_ns() - max(identity.mtime_ns, identity.ctime_ns) < _SETTLED_NS:
        return
    places = known_layouts(path, identity) or {}
    _known.pop(path, None)
    _known[path] = identity, {**places, dataset: place}
    # Another thread may do the same.
    for oldest in list(_known)[:-_AT_MOST]:
        _known.pop(oldest, None)
