"""Who reads which block of a checkpoint, and who sends what to whom.

Each block is read by one of the ranks that want something of it, and sent on to the others. So each
byte is read once, whatever the number of ranks, of files, and of ranks that wrote them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Block = tuple[int, int]
"""A file and a block of it, by their numbers."""


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """What one rank sends to another of a block that it has read."""

    block: Block
    reader: int
    receiver: int
    low: int
    high: int
    """Which bytes of the block."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """What all ranks do, the same on every rank."""

    own: Mapping[int, Sequence[Block]]
    """By rank: what it reads, and nobody else wants."""
    shared: Mapping[int, Sequence[Block]]
    """By rank: what it reads, and others want as well."""
    transfers: Sequence[Transfer]
    """In the order in which every rank has its part of them."""


Wants = Sequence[tuple[int, int, int, int, int]]
"""Of one rank: file, first block, block after the last; which bytes of them, of each the same."""


def plan_exchange(wants: Sequence[Wants]) -> Schedule:
    """Return who reads what, given what every rank wants. Not collective.

    All ranks read as evenly as possible. Who wants a block at all may read it, so with the layout
    that was saved nothing is sent.
    """
    wanted: dict[Block, list[tuple[int, int, int]]] = {}
    for rank, ranges in enumerate(wants):
        for file, first, stop, low, high in ranges:
            for number in range(first, stop):
                wanted.setdefault((file, number), []).append((rank, low, high))
    own: dict[int, list[Block]] = {rank: [] for rank in range(len(wants))}
    shared: dict[int, list[Block]] = {rank: [] for rank in range(len(wants))}
    for block in sorted(wanted):
        if len(wanted[block]) == 1:
            own[wanted[block][0][0]].append(block)
    load = [len(blocks) for blocks in own.values()]
    rounds: list[tuple[int, int, Block]] = []
    # Of each file the first, then of each the second: who wants what differs from file to file.
    for block in sorted(
        (block for block, who in wanted.items() if len(who) > 1), key=lambda block: block[::-1]
    ):
        # Of those that have read least, who wants most: less is sent then.
        reader, _, _ = min(wanted[block], key=lambda want: (load[want[0]], want[1] - want[2]))
        load[reader] += 1
        rounds.append((len(shared[reader]), reader, block))
        shared[reader].append(block)
    transfers = [
        Transfer(block=block, reader=reader, receiver=rank, low=low, high=high)
        # All ranks read at the same time: first of each the first, then of each the second.
        for _, reader, block in sorted(rounds)
        for rank, low, high in _beginning_after(reader, wanted[block])
        if rank != reader
    ]
    return Schedule(own=own, shared=shared, transfers=transfers)


def _beginning_after(
    reader: int, who: Sequence[tuple[int, int, int]]
) -> list[tuple[int, int, int]]:
    """Order receivers so that not all ranks send to the same one at a time."""
    return sorted(who, key=lambda want: (want[0] < reader, want[0]))
