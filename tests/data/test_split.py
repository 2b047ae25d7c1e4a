"""What is left of an epoch after ranks have taken some of it."""

from __future__ import annotations

import numpy as np

from hpctrain.data.source import take_rows
from hpctrain.data.split import TAILS, Taken, batch_sizes, left_over, part_of
from tests.instructions import count_instructions


def positions(ranges: list[range]) -> list[int]:
    return [position for rows in ranges for position in rows]


def test_what_is_left_is_what_no_rank_has_taken_in_any_world():
    random = np.random.default_rng(1)
    for _ in range(100):
        num_rows = int(random.integers(1, 200))
        taken: list[Taken] = []
        left = list(range(num_rows))
        for _ in range(4):
            world_size, batch_size = (int(random.integers(1, most)) for most in (9, 5))
            tail = TAILS[random.integers(2)]
            ranges = left_over(num_rows, taken)
            assert positions(ranges) == left
            sizes = [
                batch_sizes(
                    len(left), rank=rank, world_size=world_size, batch_size=batch_size, tail=tail
                )
                for rank in range(world_size)
            ]
            batches = min(int(random.integers(0, 4)), *map(len, sizes))
            gone: set[int] = set()
            for rank in range(world_size):
                part = part_of(ranges, rank=rank, world_size=world_size)
                gone.update(positions(take_rows(part, range(sum(sizes[rank][:batches])))))
            largest = -(-len(left) // world_size)
            rows = min(batches * batch_size, largest)
            taken.append(Taken(world_size, rows, tail))
            left = [position for position in left if position not in gone]


def test_the_work_for_a_rank_does_not_depend_on_the_number_of_ranks():
    def instructions(world_size: int) -> int:
        twice = [Taken(world_size, 10), Taken(world_size, 10)]
        return count_instructions(lambda: left_over(10**6, twice))

    assert instructions(200) < 12 * instructions(20)
