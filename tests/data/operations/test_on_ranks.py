"""What needs all rows, or puts datasets together, is shared out over ranks like any dataset."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from hpctrain.data import Dataset, from_items, prefetch, range, read_parquet, stream
from hpctrain.data.identity import files_of

ROWS = 23


@pytest.fixture
def rows(tmp_path: Path) -> Dataset:
    random = np.random.default_rng(1)
    for part in (0, 1):
        table = pyarrow.table({"key": random.integers(0, 9, ROWS), "x": random.random(ROWS)})
        pyarrow.parquet.write_table(table, tmp_path / f"{part}.parquet")
    return read_parquet(tmp_path)


OPERATIONS = {
    "sort": lambda ds: ds.sort(["key", "x"], descending=True),
    "groups": lambda ds: ds.groupby("key").mean("x"),
    "mapped groups": lambda ds: ds.groupby("key").map_groups(lambda b: b),
    "filter": lambda ds: ds.filter(expr="key > 3").random_shuffle(seed=2),
    "union": lambda ds: ds.union(ds.map(lambda row: {**row, "x": -row["x"]})),
    "zip": lambda ds: ds.zip(ds.select_columns("x")),
    "sample": lambda ds: ds.random_sample(0.5, seed=4),
    "split": lambda ds: ds.filter(lambda row: row["key"] > 1).split(2)[1],
}


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("name", OPERATIONS)
def test_ranks_get_each_row_once_and_go_on_with_other_ranks(
    rows: Dataset, name: str, shuffle: bool
):
    dataset = OPERATIONS[name](rows)
    sent = cloudpickle.dumps(dataset)
    assert len(sent) < 12000
    assert dataset.memory_bytes == 0
    assert files_of(dataset) == files_of(rows) == dataset.input_files()
    column = dataset.columns()[-1]
    expected = sorted(dataset.to_numpy()[column].tolist())
    assert expected

    def parts(world_size: int) -> list[Any]:
        # Each rank computes for itself what it was sent.
        return [
            pickle.loads(sent).shard(rank=r, world_size=world_size) for r in np.arange(world_size)
        ]

    found, states = [], []
    for part in parts(3):
        batches = iter(part.iter_batches(batch_size=2, shuffle=shuffle))
        found += next(batches)[column].tolist()
        states.append(part.state_dict())
    assert states == states[:1] * 3
    for part in parts(2):
        part.load_state_dict(states[0])
        for batch in part.iter_batches(batch_size=2, shuffle=shuffle):
            found += batch[column].tolist()
    assert sorted(found) == expected


def test_the_whole_is_computed_at_first_use_and_once():
    calls = []

    def seen(batch: dict[str, Any]) -> dict[str, Any]:
        calls.append(len(batch["id"]))
        return batch

    dataset = range(10).map_batches(seen, keeps_rows=True)
    ordered = dataset.sort("id", descending=True)
    calls.clear()
    assert ordered.num_rows == 10
    assert calls == []
    assert [row["id"] for row in ordered.take(2)] == [9, 8]
    assert [row["id"] for row in ordered.take(2)] == [9, 8]
    assert calls == [10]


class Model:
    constructed = 0

    def __init__(self, add: int) -> None:
        type(self).constructed += 1
        self.add = add

    def __call__(self, batch: dict[str, Any], by: int) -> dict[str, Any]:
        return {"id": batch["id"] * by + self.add}


def test_a_class_is_constructed_once_in_a_process_and_does_not_travel():
    mapped = range(100).map_batches(Model, batch_size=7, fn_constructor_args=[5], fn_args=[2])
    Model.constructed = 0
    for _ in np.arange(3):
        assert mapped.to_numpy()["id"].tolist() == list(np.arange(100) * 2 + 5)
    assert Model.constructed == 1
    again = pickle.loads(pickle.dumps(mapped))
    assert again.num_rows == 100
    assert again.take(1) == [{"id": 5}]
    assert Model.constructed == 2


def test_rows_that_were_drawn_are_the_same_everywhere_and_others_with_another_seed():
    drawn = range(1000).random_sample(0.3)
    assert (
        drawn.to_numpy()["id"].tolist()
        == pickle.loads(pickle.dumps(drawn)).to_numpy()["id"].tolist()
    )
    assert range(1000).random_sample(0.3).take_all() != drawn.take_all()
    assert list(np.concatenate(list(drawn.source.blocks()))) == list(np.arange(drawn.num_rows))


def test_a_column_that_some_lack_is_missing_in_their_rows():
    first = from_items([{"a": 1, "t": np.datetime64("2026-01-01", "us").item()}])
    union = first.union(from_items([{"b": True}]), from_items([]))
    assert [*map(str, union.schema().values())] == ["float64", "datetime64[us]", "object"]
    batch = union.to_numpy()
    assert np.isnan(batch["a"][1])
    assert np.isnat(batch["t"][1])
    assert batch["b"].tolist() == [None, True]


def test_batches_without_a_size_are_some_mib_and_as_many_on_each_rank():
    wide = range(5000).map_batches(lambda b: {"x": np.zeros((len(b["id"]), 4))})
    for rank in (0, 1):
        batches = wide.shard(rank=rank, world_size=2).iter_batches(batch_size=None)
        assert [len(batch["x"]) for batch in batches] == [2500]
        assert len(batches) == 1
    assert (
        sum(len(b["x"]) for b in wide.iter_batches(batch_size=None, batch_format="default")) == 5000
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda rows, step: rows.map_batches(step),
        lambda rows, step: rows.map_batches(step).union(rows.map_batches(step)),
        lambda rows, step: rows.map_batches(step).sort("id"),
    ],
)
def test_no_clock_runs_while_a_function_of_the_user_does(make):
    stopped = []

    def step(batch):
        job = getattr(prefetch._current, "job", None)
        stopped.append(None if job is None else job.clock_is_stopped)
        return batch

    rows = make(range(1000), step)
    stopped.clear()
    batches = rows.shard(rank=0, world_size=1).iter_batches(batch_size=10)

    assert sum(len(batch["id"]) for batch in batches) == rows.count()
    assert True in stopped
    assert False not in stopped


@pytest.mark.parametrize("value", ["a", b"c", 2**60 + 1])
def test_the_first_rows_may_miss_the_values_that_unique_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: object
):
    table = pyarrow.table({"s": [None, None, value, value]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    monkeypatch.setattr(stream, "READ_BYTES", 1)
    rows = read_parquet(tmp_path)
    assert len(list(rows.all_pieces())) == 2
    assert rows.unique("s") == [None, value]
    assert rows.unique("s", ignore_nulls=True) == [value]
    assert rows.limit(2).unique("s") == [None]
