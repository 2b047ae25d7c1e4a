from __future__ import annotations

from itertools import product

import pytest

from hpctrain.plan.layout import describe_counts, share_out


@pytest.mark.parametrize(
    ("num_workers", "slots", "num_nodes", "counts"),
    [
        (1, (4,), 1, (1,)),
        (4, (4, 4), 1, (4, 0)),
        (5, (4, 4), 1, (3, 2)),
        (5, (4, 4, 4), 1, (3, 2, 0)),
        (10, (4, 4, 4), 1, (4, 3, 3)),
        (4, (3, 1), 1, (3, 1)),
        (3, (3, 1), 1, (3, 0)),
        (2, (1, 3), 1, (0, 2)),
        (4, (1, 3), 1, (1, 3)),
        (5, (1, 8, 2), 1, (0, 5, 0)),
        (9, (1, 8, 2), 1, (0, 7, 2)),
        (2, (4, 4), 2, (1, 1)),
        (3, (4, 4), 2, (2, 1)),
        (3, (4, 4), 9, (2, 1)),
        (6, (0, 3, 0, 3), 1, (0, 3, 0, 3)),
    ],
)
def test_workers_share_the_fewest_nodes_evenly(num_workers, slots, num_nodes, counts):
    assert share_out(num_workers, slots, num_nodes=num_nodes) == counts


def test_every_layout_places_all_workers_within_the_slots_on_no_more_nodes_than_needed():
    for slots in product(range(4), repeat=3):
        for num_workers in range(1, sum(slots) + 1):
            counts = share_out(num_workers, slots)
            assert sum(counts) == num_workers
            assert all(count <= held for count, held in zip(counts, slots, strict=True))
            used = sum(count > 0 for count in counts)
            assert sum(sorted(slots, reverse=True)[: used - 1]) < num_workers


@pytest.mark.parametrize(
    ("counts", "text"),
    [((4,), "4"), ((4, 4), "4(x2)"), ((3, 1), "3,1"), ((4, 4, 2, 4), "4(x2),2,4"), ((), "")],
)
def test_numbers_of_nodes_are_written_as_slurm_does(counts: tuple[int, ...], text: str):
    assert describe_counts(counts) == text
