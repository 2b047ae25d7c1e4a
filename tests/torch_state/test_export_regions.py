"""Where the bytes of a chunk go, compared with what NumPy makes of random chunks."""

from __future__ import annotations

import math
import random

import numpy as np

from hpctrain.torch.state.export.regions import Placement, regions, slabs


def test_bytes_of_a_chunk_go_where_numpy_has_them() -> None:
    seeded = random.Random(1)
    for _ in range(1000):
        whole = [seeded.randint(1, 5) for _ in range(seeded.randint(0, 4))]
        offsets = [seeded.randrange(size) for size in whole]
        shape = [seeded.randint(1, n - at) for n, at in zip(whole, offsets, strict=True)]
        item = seeded.choice([1, 2, 4])
        placement = Placement.of(shape=shape, offsets=offsets, whole=whole, item_bytes=item)
        region = tuple(slice(at, at + n) for at, n in zip(offsets, shape, strict=True))
        numbers = np.arange(math.prod(whole) * item).reshape(*whole, item)[region].reshape(-1)
        first = seeded.randint(0, numbers.size)
        last = seeded.randint(first, numbers.size)
        found: list[int] = []
        for copy in placement.copies(first, last):
            assert copy.num_rows == 1 or copy.source_stride == copy.row_bytes
            for row in range(copy.num_rows):
                assert copy.source + row * copy.source_stride == len(found)
                start = copy.target + row * copy.target_stride
                found += range(start, start + copy.row_bytes)
        assert found == numbers[first:last].tolist(), (whole, offsets, shape, item, first, last)


def test_rows_that_are_not_cut_are_one_copy() -> None:
    placement = Placement.of(shape=(3, 4, 5), offsets=(2, 0, 0), whole=(9, 4, 5), item_bytes=4)
    assert (placement.lengths, placement.target) == ((240,), 160)
    columns = Placement.of(shape=(9, 2, 5), offsets=(0, 1, 0), whole=(9, 4, 5), item_bytes=4)
    assert (columns.lengths, columns.strides, columns.target) == ((9, 40), (80, 1), 20)
    (copy,) = columns.copies(0, 360)
    assert (copy.num_rows, copy.row_bytes, copy.target_stride) == (9, 40, 80)


def test_slabs_are_all_elements_in_order_and_none_is_larger_than_it_may_be() -> None:
    seeded = random.Random(2)
    for _ in range(500):
        shape = [seeded.randint(0, 6) for _ in range(seeded.randint(0, 4))]
        most = seeded.choice([4, 8, 20, 100])
        numbers = np.arange(math.prod(shape)).reshape(shape)
        found: list[int] = []
        for offsets, lengths in slabs(shape, item_bytes=4, most_bytes=most):
            region = tuple(slice(at, at + n) for at, n in zip(offsets, lengths, strict=True))
            found += numbers[region].reshape(-1).tolist()
            assert math.prod(lengths) * 4 <= most
        assert found == list(range(numbers.size))
    assert list(slabs((0, 3), item_bytes=4, most_bytes=4)) == [((0, 0), (0, 3))]
    assert list(regions((2, 3), 1, 5)) == [((0, 1), (1, 2)), ((1, 0), (1, 2))]
