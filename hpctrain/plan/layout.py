"""Number of workers for each node, from its slots. Numbers only; no Slurm, no names."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby


def share_out(num_workers: int, slots: Sequence[int], *, num_nodes: int = 1) -> tuple[int, ...]:
    """Return the number of workers for each node: as few nodes as possible, filled evenly.

    Not collective. This equals srun's block distribution of a step over its nodes: equal numbers as
    far as there is room.

    Parameters
    ----------
    num_workers
        Workers of the run; all slots together suffice for them.
    slots
        How many workers each node holds.
    num_nodes
        Nodes that are used at least, as far as there are workers for them.

    Examples
    --------
    >>> share_out(5, (4, 4, 4))
    (3, 2, 0)
    >>> share_out(4, (3, 1))
    (3, 1)
    >>> share_out(5, (4, 4, 4), num_nodes=3)
    (2, 2, 1)
    """
    assert num_workers <= sum(slots)
    # The order of nodes that hold as many as others stays.
    largest_first = sorted(range(len(slots)), key=lambda node: -slots[node])
    used = min(num_nodes, len(slots))
    while sum(slots[node] for node in largest_first[:used]) < num_workers:
        used += 1
    chosen = sorted(largest_first[:used])
    counts = [0] * len(slots)
    left = num_workers
    while left:
        for node in chosen:
            if left and counts[node] < slots[node]:
                counts[node] += 1
                left -= 1
    return tuple(counts)


def describe_counts(counts: Sequence[int]) -> str:
    """Return numbers of nodes as Slurm writes them.

    Not collective.

    Examples
    --------
    >>> describe_counts((4, 4, 1))
    '4(x2),1'
    """
    runs = [(count, len(list(group))) for count, group in groupby(counts)]
    return ",".join(f"{count}(x{times})" if times > 1 else str(count) for count, times in runs)
