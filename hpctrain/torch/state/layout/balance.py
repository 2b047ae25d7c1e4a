"""`balance_rows`: who of the ranks that hold a tensor writes which rows of it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, kw_only=True)
class HeldRows:
    """Rows that one or several ranks hold."""

    holders: tuple[int, ...]
    """Ranks, ascending."""
    rows: int
    row_bytes: int


@dataclass(frozen=True, kw_only=True)
class RowRange:
    """Rows that a rank writes."""

    rank: int
    start: int
    stop: int


def balance_rows(held: Sequence[HeldRows], *, load: Sequence[int]) -> list[list[RowRange]]:
    """Return who writes which rows of each, so that all ranks write equally many bytes.

    Not collective; the same on every rank that is given the same. What one rank holds it writes.
    What several hold is laid end to end and cut between rows, so that most of it stays in one
    chunk, and no rank has two chunks of one.

    Parameters
    ----------
    held
        What there is to write.
    load
        By rank: bytes that it writes besides.

    Examples
    --------
    >>> balance_rows([HeldRows(holders=(0, 1), rows=10, row_bytes=4)], load=[0, 0])
    [[RowRange(rank=0, start=0, stop=5), RowRange(rank=1, start=5, stop=10)]]
    """
    ranges: list[list[RowRange]] = [[] for _ in held]
    load = [*load]
    groups: dict[tuple[int, ...], list[int]] = {}
    for index, item in enumerate(held):
        groups.setdefault(item.holders, []).append(index)
    # What few ranks can write goes first, and what many can evens out the rest.
    for holders, indices in sorted(groups.items(), key=lambda pair: len(pair[0])):
        size = sum(held[index].rows * held[index].row_bytes for index in indices)
        cuts = _cuts(size, [load[rank] for rank in holders])
        position = 0
        for index in indices:
            for rows in _cut(held[index], position, holders, cuts):
                ranges[index].append(rows)
                load[rows.rank] += (rows.stop - rows.start) * held[index].row_bytes
            position += held[index].rows * held[index].row_bytes
    return ranges


def _cuts(size: int, load: Sequence[int]) -> list[float]:
    """Return where each rank's part of `size` bytes ends, so that the lowest are filled first."""
    level, ordered = 0.0, sorted(load)
    for count, filled in enumerate(accumulate(ordered), start=1):
        level = (size + filled) / count
        if count == len(ordered) or level <= ordered[count]:
            break
    cuts, position = [], 0.0
    for own in load:
        position += max(0.0, level - own)
        cuts.append(position)
    return cuts


def _cut(
    item: HeldRows, position: int, holders: Sequence[int], cuts: Sequence[float]
) -> list[RowRange]:
    start, ranges = 0, list[RowRange]()
    # Of thousands of ranks, each item is for a few.
    index, last = min(bisect_left(cuts, position), len(cuts) - 1), len(cuts) - 1
    while not ranges or start < item.rows:
        is_rest = index == last or not item.row_bytes
        rows = item.rows if is_rest else round((cuts[index] - position) / item.row_bytes)
        stop = min(max(rows, start), item.rows)
        if stop > start or item.rows == 0:
            ranges.append(RowRange(rank=holders[index], start=start, stop=stop))
            start = stop
        index += 1
    return ranges
