"""Groups of rows for ranking: each group is on one rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hpctrain.errors import ConfigError
from hpctrain.worker.context import active_worker
from hpctrain.world import Communicator

Array = np.ndarray[Any, Any]


def whole_groups(
    arrays: Mapping[str, Array], comm: Communicator, *, dataset: str, column: str
) -> dict[str, Array]:
    """Return this rank's rows, in whole groups: those of `join_groups` if ranks have parts.

    Collective.

    Raises
    ------
    ConfigError
        On every rank, if a rank would be left without a group, or two ranks with parts of one.
    """
    worker = active_worker("boosting")
    # By a DataConfig of the user's: parts, or all rows.
    is_assigned = worker.assigned is not None
    split = worker.datasets_to_split
    if not is_assigned and split != "all" and dataset not in split:
        return dict(arrays)
    joined = join_groups(arrays, comm, dataset=dataset)
    if not is_assigned:
        check_apart(joined["group"], comm, dataset=dataset, column=column)
    return joined


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


def check_apart(group: Array, comm: Communicator, *, dataset: str, column: str) -> None:
    """Check that no two ranks have rows of a group. Collective.

    Raises
    ------
    ConfigError
        On every rank, if two have.
    """
    ranks = comm.gather(np.unique(group))
    twice = None
    if ranks is not None:
        found, counts = np.unique(np.concatenate(ranks), return_counts=True)
        twice = found[counts > 1][:1].tolist()
    if twice := comm.bcast(twice):
        raise _not_adjacent(dataset, column, f", for example those of {twice[0]!r}")


def _not_adjacent(dataset: str, column: str, example: str = "") -> ConfigError:
    return ConfigError(
        f"dataset {dataset!r}: rows with the same {column!r} are not adjacent{example}. Sort the "
        f"rows by {column!r}."
    )


def run_lengths(values: Array, *, dataset: str, column: str) -> Array:
    """Return the sizes of groups, in order. Not collective.

    Raises
    ------
    ConfigError
        If rows of a group are not adjacent.
    """
    begins = np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]]))
    if len(begins) != len(np.unique(values)):
        raise _not_adjacent(dataset, column)
    return np.diff(np.concatenate([begins, [len(values)]]))
