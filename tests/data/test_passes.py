"""What is made before an epoch loop is iterated over once an epoch, as Ray Data's iterables are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest

from hpctrain.data import DataIterator, from_numpy, shard_dataset
from hpctrain.errors import ConfigError


def shard(count: int = 12, *, rank: int = 0, world_size: int = 1, **how: Any) -> DataIterator:
    dataset = from_numpy({"y": np.arange(count)})
    return dataset.shard(rank=rank, world_size=world_size, **how)


def values(batches: Iterable[Any]) -> list[int]:
    return [int(y) for batch in batches for y in np.atleast_1d(batch["y"])]


@pytest.mark.parametrize("batch_format", ["numpy", "pandas", "pyarrow"])
def test_a_loader_made_before_the_epochs_gives_every_epoch(batch_format: Any):
    loader = shard().iter_batches(batch_size=3, batch_format=batch_format)
    assert [len(list(loader)) for _ in range(3)] == [4, 4, 4]


def test_tensors_and_rows_come_in_every_epoch_too():
    tensors, rows = shard().iter_torch_batches(batch_size=3), shard().iter_rows()
    assert [values(tensors) for _ in range(3)] == [[*range(12)]] * 3
    assert [values(rows) for _ in range(3)] == [[*range(12)]] * 3


def test_a_whole_dataset_can_be_passed_over_again():
    dataset = shard().dataset
    for made in (dataset.iter_batches(batch_size=5), dataset.iter_rows()):
        assert [values(made) for _ in range(2)] == [[*range(12)]] * 2


def test_each_pass_is_the_next_epoch_with_an_order_of_its_own():
    part, alone = shard(100), shard(100)
    loader = part.iter_batches(batch_size=10, shuffle=True)
    epochs = [values(loader) for _ in range(3)]
    assert epochs == [values(alone.iter_batches(batch_size=10, shuffle=True)) for _ in range(3)]
    assert len({*map(tuple, epochs)}) == 3
    assert part.epoch == 3


@pytest.mark.parametrize("how", [{}, {"drop_last": True}, {"tail": "pad"}, {"tail": "uneven"}])
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_the_length_is_the_number_of_batches(rank: int, how: dict[str, Any]):
    loader = shard(23, rank=rank, world_size=3).iter_batches(batch_size=3, **how)
    assert len(loader) == len([*loader]) == (2 if "drop_last" in how else 3)


@pytest.mark.parametrize("tail", ["uneven", "drop", "pad"])
def test_rows_have_a_length_unless_a_filter_leaves_it_open(tail: Any):
    part = shard(1001, rank=1, world_size=2, tail=tail)
    rows: Any = part.iter_rows()
    assert len(rows) == len([*rows])
    few = part.dataset.filter(lambda batch: batch["y"] > 7)
    for open_ended in (few.shard(rank=0, world_size=1).iter_rows(), few.iter_rows()):
        assert not hasattr(open_ended, "__len__")
        assert [len([*open_ended]) for _ in range(2)] == [993, 993]
    assert not hasattr(few.iter_batches(), "__len__")
    whole: Any = part.dataset.iter_batches(batch_size=10)
    assert len(whole) == len([*whole]) == 101


def test_breaking_off_in_the_middle_begins_the_next_epoch_from_its_start():
    part = shard()
    loader = part.iter_batches(batch_size=3)
    assert values(islice(loader, 2)) == [0, 1, 2, 3, 4, 5]
    assert part.state_dict()["taken"] == [{"world_size": 1, "rows": 6, "tail": "uneven"}]
    assert values(loader) == [*range(12)]
    assert part.epoch == 2


def test_two_passes_at_a_time_give_all_their_rows_and_the_newest_has_the_position():
    part = shard(100)
    loader = part.iter_batches(batch_size=10, shuffle=True)
    first = iter(loader)
    seen = values(islice(first, 3))
    second = iter(loader)
    pairs = [*zip(first, second, strict=False)]
    seen += values(one for one, _ in pairs)
    others = values(two for _, two in pairs)
    assert sorted(seen) == [*range(100)]
    assert part.state_dict()["epoch"] == 1
    # zip() ends where the first pass is over, and takes no more of the second.
    assert sorted(others + values(second)) == [*range(100)]
    assert part.epoch == 2


def test_a_look_at_the_first_batch_on_rank_0_changes_no_number_of_batches():
    loaders = [shard(100, rank=rank, world_size=2).iter_batches(batch_size=10) for rank in range(2)]
    next(iter(loaders[0]))
    for _ in range(2):
        epochs = [[*loader] for loader in loaders]
        assert [len(batches) for batches in epochs] == [5, 5]
        assert sorted(values(batch for batches in epochs for batch in batches)) == [*range(100)]


def test_a_loader_made_before_a_state_is_loaded_goes_on_from_that_state():
    old, new = shard(), shard()
    _ = values(islice(old.iter_batches(batch_size=3), 3))
    loader = new.iter_batches(batch_size=3)
    new.load_state_dict(old.state_dict())
    assert [values(loader) for _ in range(2)] == [[9, 10, 11], [*range(12)]]
    assert len(loader) == 4


def test_next_goes_on_like_an_iterator_and_a_loop_takes_what_is_left():
    loader = shard().iter_batches(batch_size=3)
    assert isinstance(loader, Iterator)
    assert values([next(loader)]) == [0, 1, 2]
    assert values(loader) == [*range(3, 12)]
    assert values(loader) == [*range(12)]
    assert values(next(loader) for _ in range(4)) == [*range(12)]
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(loader)
    assert values(loader) == [*range(12)]


def test_what_is_wrong_is_an_error_of_the_call():
    with pytest.raises(ConfigError, match=r"drop.*leaves nothing"):
        shard(4).iter_batches(batch_size=5, drop_last=True)


def test_a_rank_takes_its_part_of_an_iterable_every_epoch():
    class Numbers:
        def __iter__(self) -> Iterator[int]:
            return iter(range(7))

    part = shard_dataset(Numbers(), rank=1, world_size=3)
    assert [[*part] for _ in range(2)] == [[1, 4]] * 2
