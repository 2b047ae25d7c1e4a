"""Who writes which rows: each once, evenly, and in few chunks."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import pytest

from hpctrain.torch.state.layout.balance import HeldRows, balance_rows


def _written(held: list[HeldRows], ranks: int) -> list[int]:
    """Return the bytes of each rank, having checked that each row is written once."""
    total = [0] * ranks
    for item, ranges in zip(held, balance_rows(held, load=[0] * ranks), strict=True):
        position = 0
        for rows in ranges:
            assert rows.rank in item.holders
            assert rows.start == position
            assert rows.stop > rows.start or item.rows == 0
            total[rows.rank] += (rows.stop - rows.start) * item.row_bytes
            position = rows.stop
        assert position == item.rows
        assert len({rows.rank for rows in ranges}) == len(ranges)
    return total


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7, 64])
def test_what_all_hold_is_written_evenly(ranks: int) -> None:
    everyone = tuple(range(ranks))
    shapes = [(50257, 4096), (1024, 4096), *[(3072, 4096), (3072, 4)] * 12, (1, 4)]
    held = [HeldRows(holders=everyone, rows=r, row_bytes=b) for r, b in shapes]
    total = _written(held, ranks)
    assert max(total) <= 1.02 * sum(total) / ranks


class Walked(tuple[int, ...]):
    """Ranks, which count how many of them are looked at one after the other."""

    steps = 0

    def __iter__(self) -> Iterator[int]:
        for rank in super().__iter__():
            Walked.steps += 1
            yield rank


def test_each_item_looks_at_its_own_ranks_only() -> None:
    everyone = Walked(range(2000))
    held = [HeldRows(holders=everyone, rows=4096, row_bytes=16384) for _ in range(300)]
    Walked.steps = 0
    ranges = balance_rows(held, load=[0] * len(everyone))
    assert Walked.steps <= 2 * len(everyone)
    total = [0] * len(everyone)
    for rows in itertools.chain(*ranges):
        total[rows.rank] += rows.stop - rows.start
    assert sum(total) == 300 * 4096
    assert max(total) - min(total) <= 1


def test_replicated_rows_even_out_what_sharded_ones_leave_uneven() -> None:
    held = [
        HeldRows(holders=(0,), rows=100, row_bytes=10),
        HeldRows(holders=(1,), rows=20, row_bytes=10),
        HeldRows(holders=(0, 2), rows=50, row_bytes=10),
        HeldRows(holders=(0, 1, 2, 3), rows=230, row_bytes=10),
    ]
    assert _written(held, 4) == [1000] * 4


def test_a_rank_that_has_more_than_its_part_gets_nothing_more() -> None:
    held = [
        HeldRows(holders=(1,), rows=1000, row_bytes=10),
        HeldRows(holders=(0, 1, 2), rows=100, row_bytes=10),
    ]
    assert _written(held, 3) == [500, 10000, 500]


def test_what_has_no_bytes_still_has_a_writer() -> None:
    held = [
        HeldRows(holders=(0, 1), rows=0, row_bytes=0),
        HeldRows(holders=(0, 1), rows=3, row_bytes=0),
        HeldRows(holders=(0, 1), rows=1, row_bytes=4),
    ]
    assert [len(ranges) for ranges in balance_rows(held, load=[0, 0])] == [1, 1, 1]


def test_any_mixture_is_written_once() -> None:
    chance = random.Random(0)
    for _ in range(200):
        ranks = chance.randint(1, 9)
        held = [
            HeldRows(
                holders=tuple(sorted(chance.sample(range(ranks), chance.randint(1, ranks)))),
                rows=chance.choice([0, 1, 2, 17, 1000]),
                row_bytes=chance.choice([1, 8, 4096]),
            )
            for _ in range(chance.randint(0, 30))
        ]
        _written(held, ranks)
