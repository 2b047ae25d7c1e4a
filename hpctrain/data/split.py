"""Which positions of an epoch each rank takes, and in which batches.

An epoch is a sequence of positions, 0 to the number of rows; its order says which row is at which.
Ranks take contiguous parts of it, which read well. What a world of some size took in so
many batches follows from numbers alone, and so does what is left for a world of another size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, TypeAlias

from hpctrain.data.shard import shard_rows
from hpctrain.data.source import take_rows
from hpctrain.errors import ConfigError

Tail: TypeAlias = Literal["uneven", "drop", "pad"]

TAILS = ("uneven", "drop", "pad")


@dataclass(frozen=True)
class Taken:
    """What ranks have taken of an epoch, or of what others before them had left."""

    world_size: int
    batch_size: int
    """Rows that each rank wants in a batch."""
    batches: int
    """Batches that each rank has taken."""
    tail: Tail = "uneven"


def batch_sizes(
    num_rows: int, *, rank: int, world_size: int, batch_size: int, tail: Tail
) -> list[int]:
    """Return how many rows each batch of a rank has: the same number of batches on every rank.

    Not collective. With ``"uneven"`` batches of the same number differ by one row at most between
    ranks, and none is empty where a rank has as many rows as batches. With ``"drop"`` all are full,
    and what is too little for one batch each is left out. With ``"pad"`` the last one is filled up,
    by whoever reads, so its size here is that of the others, too.

    Examples
    --------
    >>> [batch_sizes(9, rank=r, world_size=2, batch_size=2, tail="uneven") for r in (0, 1)]
    [[2, 2, 1], [2, 1, 1]]
    >>> [batch_sizes(1, rank=r, world_size=2, batch_size=4, tail="uneven") for r in (0, 1)]
    [[1], [0]]
    """
    if tail == "drop":
        return [batch_size] * (num_rows // world_size // batch_size)
    largest = len(shard_rows(num_rows, rank=0, world_size=world_size))
    batches = -(-largest // batch_size)
    if tail == "pad":
        return [batch_size] * batches
    mine = len(shard_rows(num_rows, rank=rank, world_size=world_size))
    sizes = [min(batch_size, mine - start) for start in range(0, mine, batch_size)]
    if len(sizes) < batches:
        # This rank has one row less than others, which need another batch for theirs.
        sizes.append(0)
        if len(sizes) > 1 and sizes[-2] > 1:
            sizes[-2:] = sizes[-2] - 1, 1
    return sizes


def part_of(ranges: Sequence[range], *, rank: int, world_size: int) -> list[range]:
    """Return the contiguous part of a rank in ranges of positions. Not collective."""
    total = sum(map(len, ranges))
    return take_rows(ranges, shard_rows(total, rank=rank, world_size=world_size))


def left_over(num_rows: int, taken: Sequence[Taken]) -> list[range]:
    """Return the positions of an epoch that nobody has taken.

    Not collective.

    Examples
    --------
    >>> left_over(10, [Taken(2, 2, 1)])
    [range(2, 5), range(7, 10)]
    """
    ranges = [range(num_rows)]
    for some in taken:
        total, rest = sum(map(len, ranges)), []
        for rank in range(some.world_size):
            part = part_of(ranges, rank=rank, world_size=some.world_size)
            sizes = batch_sizes(
                total,
                rank=rank,
                world_size=some.world_size,
                batch_size=some.batch_size,
                tail=some.tail,
            )
            length = sum(map(len, part))
            used = min(sum(sizes[: some.batches]), length)
            rest += take_rows(part, range(used, length))
        ranges = _merged(rest)
    return ranges


def batch_offsets(sizes: Sequence[int]) -> list[int]:
    """Return where each batch begins in the part of its rank, and where the last one ends."""
    return [0, *accumulate(sizes)]


def check_tail(tail: str) -> None:
    """Refuse what is no tail. Not collective.

    Raises
    ------
    ConfigError
        If it is none of "uneven", "drop", "pad".
    """
    if tail not in TAILS:
        raise ConfigError(f"tail={tail!r}. One of {', '.join(map(repr, TAILS))} is needed.")


def _merged(ranges: Sequence[range]) -> list[range]:
    merged: list[range] = []
    for rows in ranges:
        if merged and merged[-1].stop == rows.start:
            merged[-1] = range(merged[-1].start, rows.stop)
        elif rows:
            merged.append(rows)
    return merged
