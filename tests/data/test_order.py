"""The order of rows: whole, repeatable, mixed."""

import numpy as np
import pytest

from hpctrain.data.order import Shuffle, permutation
from hpctrain.errors import ConfigError

SIZES = [
    {"num_rows": rows, "slab_rows": slab, "slabs_per_window": slabs}
    for rows in (0, 1, 2, 7, 64, 100, 1001)
    for slab in (1, 3, 8, 100, 2000)
    for slabs in (1, 2, 5)
]


def rows_of(shuffle):
    windows = [shuffle.window(number) for number in range(shuffle.num_windows)]
    return np.concatenate([np.empty(0, np.int64), *(window.rows() for window in windows)])


@pytest.mark.parametrize("size", SIZES, ids=lambda size: "-".join(map(str, size.values())))
def test_every_row_comes_once_and_windows_join_without_a_gap(size):
    shuffle = Shuffle(**size, seed=3, epoch=1)

    windows = [shuffle.window(number) for number in range(shuffle.num_windows)]

    assert sorted(rows_of(shuffle)) == list(range(shuffle.num_rows))
    borders = [0, *(window.positions.stop for window in windows)]
    assert borders[:-1] == [window.positions.start for window in windows]
    assert borders[-1] == shuffle.num_rows
    assert all(len(window.positions) == sum(map(len, window.slabs)) for window in windows)
    assert all(len(window.positions) <= shuffle.window_rows for window in windows)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: "-".join(map(str, size.values())))
def test_each_position_is_found_in_its_window(size):
    shuffle = Shuffle(**size, seed=5)

    for position in range(shuffle.num_rows):
        assert position in shuffle.window_at(position).positions


def test_seed_and_epoch_alone_decide():
    def order(**changed):
        return rows_of(Shuffle(**{"num_rows": 500, "slab_rows": 10, "seed": 1, **changed})).tolist()

    assert order() == order()
    assert order() != order(epoch=1)
    assert order() != order(seed=2)
    assert order(seed=2, epoch=1) != order(seed=1, epoch=2)


def test_the_order_of_today_is_the_order_of_next_year():
    # A run goes on in the middle of an epoch with what may be another release of NumPy.
    assert permutation(8, (1, 2, 3)).tolist() == [4, 1, 2, 5, 6, 7, 0, 3]
    shuffle = Shuffle(num_rows=9, slab_rows=2, slabs_per_window=2, seed=7)
    assert rows_of(shuffle).tolist() == [6, 3, 7, 2, 8, 1, 0, 4, 5]


def test_neighbours_on_disk_are_spread():
    rows = rows_of(Shuffle(num_rows=80_000, slab_rows=1000, seed=0))

    # Of the rows that follow each other, few are as close as in the file, and most are far apart.
    steps = np.abs(np.diff(rows))
    assert np.mean(steps == 1) < 0.001
    assert np.median(steps) > 10_000


def test_all_permutations_are_as_likely():
    found = [tuple(permutation(3, (0, number))) for number in range(6000)]

    counts = [found.count(p) for p in set(found)]
    assert len(counts) == 6
    assert min(counts) > 850
    assert max(counts) < 1150


def test_numbers_that_make_no_sense_are_refused():
    with pytest.raises(ConfigError, match="slab_rows=0"):
        Shuffle(num_rows=5, slab_rows=0)
    with pytest.raises(ConfigError, match="seed=-1"):
        Shuffle(num_rows=5, slab_rows=1, seed=-1)
    with pytest.raises(IndexError):
        Shuffle(num_rows=5, slab_rows=1).window_at(5)
