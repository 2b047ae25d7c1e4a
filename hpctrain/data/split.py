"""Which positions of an epoch each rank takes, and in batches of which sizes.

An epoch is a sequence of positions, from 0 to the number of rows; its order maps positions to rows.
Ranks take contiguous parts of it, which are fast to read. A few numbers show which rows a world has
taken, and so which rows are left for a world of another size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from hpctrain.data.shard import shard_rows
from hpctrain.data.source import take_rows
from hpctrain.errors import ConfigError

Tail: TypeAlias = Literal["uneven", "drop", "pad"]

TAILS = ("uneven", "drop", "pad")


@dataclass(frozen=True)
class Taken:
    """The rows of an epoch, or of its rest, that the ranks of a world have taken."""

    world_size: int
    rows: int
    """Rows that each rank has taken; one less on ranks with one row less, except for "drop"."""
    tail: Tail = "uneven"


def batch_sizes(
    num_rows: int, *, rank: int, world_size: int, batch_size: int, tail: Tail
) -> list[int]:
    """Return how many rows each batch of a rank has: the same number of batches on every rank.

    Not collective. With ``"uneven"`` the numbers of rows of ranks differ by one at most. A rank
    with one row less has it less in its first batch: the last batch could become empty, and the
    mean of an empty batch is NaN. ``"drop"`` leaves out rows that do not fill a batch on every
    rank. ``"pad"`` is like ``"uneven"``; the reader fills up the batches.

    Examples
    --------
    >>> [batch_sizes(9, rank=r, world_size=2, batch_size=2, tail="uneven") for r in (0, 1)]
    [[2, 2, 1], [1, 2, 1]]
    >>> [batch_sizes(1, rank=r, world_size=2, batch_size=4, tail="uneven") for r in (0, 1)]
    [[1], [0]]
    """
    if tail == "drop":
        return [batch_size] * (num_rows // world_size // batch_size)
    largest = len(shard_rows(num_rows, rank=0, world_size=world_size))
    missing = largest - len(shard_rows(num_rows, rank=rank, world_size=world_size))
    sizes = [min(batch_size, largest - start) for start in range(0, largest, batch_size)]
    if missing:
        sizes[0] -= missing
    return sizes


def part_of(ranges: Sequence[range], *, rank: int, world_size: int) -> list[range]:
    """Return the contiguous part of a rank in ranges of positions. Not collective."""
    total = sum(map(len, ranges))
    return take_rows(ranges, shard_rows(total, rank=rank, world_size=world_size))


def left_over(num_rows: int, taken: Sequence[Taken]) -> list[range]:
    """Return the remaining positions of an epoch.

    Not collective.

    Examples
    --------
    >>> left_over(11, [Taken(world_size=2, rows=2)])
    [range(2, 6), range(7, 11)]
    """
    ranges = [range(num_rows)]
    for some in taken:
        parts = _parts(ranges, some.world_size)
        largest = sum(map(len, parts[0]))
        rest: list[range] = []
        for part in parts:
            length = sum(map(len, part))
            used = some.rows if some.tail == "drop" else some.rows - (largest - length)
            rest += take_rows(part, range(max(used, 0), length))
        ranges = _merged(rest)
    return ranges


def _parts(ranges: Sequence[range], world_size: int) -> list[list[range]]:
    """Return the `part_of` each rank, in one sweep over the ranges."""
    total = sum(map(len, ranges))
    following, rows = iter(ranges), range(0)
    parts = []
    for rank in range(world_size):
        missing = len(shard_rows(total, rank=rank, world_size=world_size))
        part: list[range] = []
        while missing:
            rows = rows or next(following)
            part.append(rows[:missing])
            missing, rows = missing - len(part[-1]), rows[missing:]
        parts.append(part)
    return parts


def check_tail(tail: str) -> None:
    """Check a tail. Not collective.

    Raises
    ------
    ConfigError
        If it is not "uneven", "drop" or "pad".
    """
    if tail not in TAILS:
        raise ConfigError(f"tail={tail!r} is unknown. Use {', '.join(map(repr, TAILS))}.")


def _merged(ranges: Sequence[range]) -> list[range]:
    merged: list[range] = []
    for rows in ranges:
        if merged and merged[-1].stop == rows.start:
            merged[-1] = range(merged[-1].start, rows.stop)
        elif rows:
            merged.append(rows)
    return merged
