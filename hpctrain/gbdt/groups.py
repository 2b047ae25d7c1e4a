"""Groups of rows for ranking: each group is on one rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hpctrain.errors import ConfigError
from hpctrain.world import Communicator

Array = np.ndarray[Any, Any]


def join_groups(
    arrays: Mapping[str, Array], comm: Communicator, *, dataset: str
) -> dict[str, Array]:
    """Return this rank's rows after moving rows, so that no group is split between ranks.

    Collective. Ranks have consecutive rows; a group belongs to the rank on which it begins.

    Parameters
    ----------
    arrays
        Columns of this rank, of equal length; ``group`` is one of them.

    Raises
    ------
    ConfigError
        On every rank, if a rank would be left without a group.
    """
    group = arrays["group"]
    last_of = comm.allgather(group[-1])
    lead = 0
    if comm.rank > 0:
        other = group != last_of[comm.rank - 1]
        lead = int(other.argmax()) if other.any() else len(group)
    given = comm.allgather((lead == len(group), {k: v[:lead] for k, v in arrays.items()}))
    if without := [rank for rank, (gave_all, _) in enumerate(given) if gave_all]:
        raise ConfigError(
            f"dataset {dataset!r}: ranks {without[:10]} of {comm.size} would have no group, "
            f"because groups are not split. Use fewer workers."
        )
    joined = {name: values[lead:] for name, values in arrays.items()}
    if comm.rank + 1 < comm.size:
        _, following = given[comm.rank + 1]
        joined = {name: np.concatenate([joined[name], following[name]]) for name in joined}
    return joined


def run_lengths(values: Array, *, dataset: str, column: str) -> Array:
    """Return the sizes of groups, in order. Not collective.

    Raises
    ------
    ConfigError
        If rows of a group are not adjacent.
    """
    begins = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))
    if len(begins) != len(np.unique(values)):
        raise ConfigError(
            f"dataset {dataset!r}: rows with the same {column!r} are not adjacent. Sort the rows "
            f"by {column!r}."
        )
    return np.diff(np.concatenate([begins, [len(values)]]))
