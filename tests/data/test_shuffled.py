"""Datasets whose rows are in another order, and which of them have a new one each epoch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest

from hpctrain.data import DataIterator, Dataset, from_numpy, read_parquet
from hpctrain.errors import ConfigError

Rows = list[int]


def numbers(rows: int = 100) -> Dataset:
    return from_numpy({"id": np.arange(rows)})


def part_of(dataset: Dataset, *, rank: int = 0, world_size: int = 1) -> DataIterator:
    """Return a part as a rank has it: of a dataset that was sent to it."""
    sent: Dataset = cloudpickle.loads(cloudpickle.dumps(dataset))
    return sent.shard(rank=rank, world_size=world_size)


def one_epoch(part: DataIterator) -> Rows:
    return [int(row["id"]) for row in part.iter_rows()]


def epochs_of(dataset: Dataset, count: int = 3) -> list[Rows]:
    part = part_of(dataset)
    return [one_epoch(part) for _ in range(count)]


def plus_one(batch: Any) -> Any:
    return {"id": batch["id"] + 1}


ANEW = {
    "rows": lambda: numbers().random_shuffle(),
    "rows of a drawn seed": lambda: numbers().random_shuffle(seed=None),
    "pieces": lambda: numbers().randomize_block_order(),
    "pieces of a drawn seed": lambda: numbers().randomize_block_order(seed=None),
    "pieces of some rows": lambda: numbers(200).limit(100).randomize_block_order(),
    "repartition": lambda: numbers().repartition(4, shuffle=True),
    "rows, mapped": lambda: numbers().random_shuffle().map_batches(plus_one),
    "rows that a filter left": lambda: (
        numbers(200).filter(lambda row: row["id"] < 100).random_shuffle()
    ),
    "union": lambda: numbers(50).random_shuffle().union(numbers(50).random_shuffle()),
    "union, mapped": lambda: (
        numbers(50).random_shuffle().map_batches(plus_one).union(numbers(50).map_batches(plus_one))
    ),
    "equal parts": lambda: numbers().random_shuffle().streaming_split(1, equal=True)[0].dataset,
}
FIXED = {
    "rows": lambda: numbers().random_shuffle(seed=3),
    "pieces": lambda: numbers().randomize_block_order(seed=3),
    "some of the rows": lambda: numbers().random_shuffle().limit(50),
    "rows to train with": lambda: numbers().train_test_split(0.2, shuffle=True, seed=None)[0],
    "rows of a split": lambda: numbers().random_shuffle().train_test_split(0.2)[0],
    "pieces of a split": lambda: numbers().randomize_block_order().split(2)[0],
    "pairs": lambda: (
        numbers().random_shuffle().zip(from_numpy({"y": np.arange(100)}).random_shuffle())
    ),
    "rows in memory": lambda: numbers().random_shuffle().materialize(),
}


@pytest.mark.parametrize("name", ANEW)
def test_each_epoch_has_an_order_of_its_own(name: str) -> None:
    epochs = epochs_of(ANEW[name]())
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted(epochs[2])
    assert len(epochs[0]) == 100


@pytest.mark.parametrize("name", FIXED)
def test_an_order_by_a_seed_and_what_is_chosen_by_place_stay_the_same(name: str) -> None:
    epochs = epochs_of(FIXED[name]())
    assert epochs[0] == epochs[1] == epochs[2]
    assert epochs[0] != sorted(epochs[0])


def test_no_row_to_train_with_is_ever_one_to_test_with() -> None:
    train, test = numbers().random_shuffle().train_test_split(0.3)
    tested = {row for epoch in epochs_of(test) for row in epoch}
    trained = {row for epoch in epochs_of(train) for row in epoch}
    assert not trained & tested
    assert trained | tested == set(range(100))


@pytest.mark.parametrize("name", ["rows", "pieces"])
def test_an_order_without_a_seed_is_the_same_in_each_run(name: str) -> None:
    assert epochs_of(ANEW[name]()) == epochs_of(ANEW[name]())
    assert cloudpickle.dumps(ANEW[name]()) == cloudpickle.dumps(ANEW[name]())


@pytest.mark.parametrize("name", ["rows", "pieces", "union"])
def test_an_epoch_goes_on_with_other_ranks_where_it_was(name: str) -> None:
    dataset = ANEW[name]()
    expected = epochs_of(dataset)
    parts = [part_of(dataset, rank=rank, world_size=2) for rank in range(2)]
    for part in parts:
        one_epoch(part)
    taken = [next(iter(part.iter_batches(batch_size=10)))["id"].tolist() for part in parts]
    state = json.loads(json.dumps(parts[0].state_dict()))
    alone = part_of(dataset)
    alone.load_state_dict(state)
    rest = [n for batch in alone.iter_batches(batch_size=10) for n in batch["id"].tolist()]
    assert sorted([*taken[0], *taken[1], *rest]) == sorted(expected[1])
    assert taken[0] == expected[1][:10]
    assert one_epoch(alone) == expected[2]


def test_row_groups_stay_whole_where_pieces_are_in_another_order(tmp_path: Path) -> None:
    for part in range(4):
        rows = {"id": np.arange(3 * part, 3 * part + 3)}
        from_numpy(rows).write_parquet(tmp_path / f"{part}.parquet")
    epochs = epochs_of(read_parquet(tmp_path).randomize_block_order(), 8)
    for ids in epochs:
        assert sorted(ids) == list(range(12))
        assert all(ids[at : at + 3] == list(range(ids[at], ids[at] + 3)) for at in range(0, 12, 3))
    assert len({tuple(epoch) for epoch in epochs}) > 1


@pytest.mark.parametrize("seed", [-1, "3", 0.5])
@pytest.mark.parametrize("name", ["random_shuffle", "randomize_block_order"])
def test_a_seed_is_a_number(name: str, seed: Any) -> None:
    with pytest.raises(
        ConfigError, match=r'is not a seed. Give an integer of 0 or more, "epoch" or None'
    ):
        getattr(numbers(), name)(seed=seed)


def test_an_iterator_in_one_order_has_the_same_rows_in_each_pass() -> None:
    dataset = from_numpy({"x": np.arange(40)}).random_shuffle()
    parts = [dataset.shard(rank=rank, world_size=2) for rank in (0, 1)]
    passes = [[rows_of(part.in_one_order()) for _ in range(3)] for part in parts]
    for first, *others in passes:
        assert all(other == first for other in others)
    steady = parts[0].in_one_order()
    assert rows_of(steady) == rows_of(steady) == passes[0][0]
    assert sorted(passes[0][0] + passes[1][0]) == list(range(40))
    assert parts[0].epoch == 0, "and the other one has not moved"


def test_a_shard_counts_the_rows_of_its_epoch() -> None:
    dataset = from_numpy({"x": np.arange(40)}).random_shuffle().filter(lambda row: row["x"] < 20)
    part = dataset.shard(rank=0, world_size=2)
    for _ in range(4):
        expected = part.count()
        assert len(rows_of(part)) == expected


def rows_of(part: Any) -> list[int]:
    return [int(x) for batch in part.iter_batches(batch_size=8) for x in batch["x"]]
