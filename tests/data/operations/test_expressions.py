"""Columns and aggregates of expressions, and pieces in another order."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

import hpctrain.data.aggregate
import hpctrain.data.expressions
from hpctrain.data import Dataset, from_items, from_numpy, read_parquet
from hpctrain.data.aggregate import Count, CountDistinct, Mean, Sum
from hpctrain.data.expressions import col, lit
from hpctrain.errors import UnavailableNameError


def blocks_of_three(folder: Path) -> Dataset:
    for part in "abcd":
        start = 3 * "abcd".index(part)
        from_numpy({"id": np.arange(start, start + 3)}).write_parquet(folder / f"{part}.parquet")
    return read_parquet(folder)


def test_a_text_and_an_expression_of_arrow_make_the_same_column() -> None:
    rows = from_items([{"x": 1, "y": 0.5}, {"x": 2, "y": None}])
    expected = [{"x": 1, "y": 0.5, "z": 2.5}, {"x": 2, "y": np.nan, "z": np.nan}]
    for dataset in (
        rows.with_column("z", "x * 2 + y"),
        rows.with_column("z", col("x") * 2 + col("y")),
        rows.rename_columns(["x", "y"]).with_column("z", lit(2) * col("x") + col("y")),
    ):
        assert dataset.columns() == ["x", "y", "z"]
        again = pickle.loads(pickle.dumps(dataset))
        np.testing.assert_equal(again.take_all(), expected)


def test_a_column_beside_arrays_of_rows_and_without_any_row() -> None:
    rows = from_numpy({"v": np.zeros((3, 2)), "name": np.array(["a", "b", "c"])})
    assert rows.with_column("at", lit(7)).to_numpy()["at"].tolist() == [7, 7, 7]
    none = rows.filter(lambda row: False).with_column("is", "name == 'a'")
    assert none.columns() == ["v", "name", "is"]
    assert none.to_numpy()["is"].shape == (0,)


def test_two_aggregates_of_one_column_and_kind_have_their_own_values() -> None:
    rows = from_items([{"k": 1, "x": 2}, {"k": 1, "x": None}, {"k": 2, "x": 4}])
    counts = (Count("x"), Count("x", ignore_nulls=True, alias_name="there"))
    assert rows.aggregate(*counts) == {"count(x)": 3, "there": 2}
    assert rows.groupby("k").aggregate(*counts, Mean("x"), CountDistinct("x")).take_all() == [
        {"k": 1, "count(x)": 2, "there": 1, "mean(x)": 2.0, "count_distinct(x)": 1},
        {"k": 2, "count(x)": 1, "there": 1, "mean(x)": 4.0, "count_distinct(x)": 1},
    ]


def test_rows_are_counted_without_a_key_and_without_a_column() -> None:
    rows = from_items([{"x": 1}, {"x": 2}])
    assert rows.groupby(None).count().take_all() == [{"count()": 2}]
    assert rows.groupby(None).aggregate(Count(), Sum("x")).take_all() == [
        {"count()": 2, "sum(x)": 3}
    ]
    assert rows.aggregate(Count()) == {"count()": 2}


def test_pieces_come_in_another_order_and_rows_in_theirs(tmp_path: Path) -> None:
    rows = blocks_of_three(tmp_path)
    orders = [
        [row["id"] for row in rows.randomize_block_order(seed=seed).take_all()] for seed in range(4)
    ]
    for ids in orders:
        assert sorted(ids) == list(range(12))
        assert all(ids[at : at + 3] == list(range(ids[at], ids[at] + 3)) for at in range(0, 12, 3))
    assert len({tuple(ids) for ids in orders}) > 1
    again = rows.randomize_block_order(seed=0)
    assert [row["id"] for row in again.take_all()] == orders[0]
    few = rows.filter(lambda row: row["id"] > 4).randomize_block_order(seed=1)
    assert sorted(row["id"] for row in few.take_all()) == list(range(5, 12))
    assert from_items([]).randomize_block_order().count() == 0


def test_the_order_of_very_many_pieces_stays_small() -> None:
    rows = from_numpy({"v": np.zeros((3000, 1))}).limit(3000)
    mixed = rows.take_ranges([range(at, at + 1) for at in range(3000)]).randomize_block_order()
    assert mixed.count() == 3000
    assert len(pickle.dumps(mixed)) < len(pickle.dumps(rows)) + 100_000


@pytest.mark.parametrize(
    "module", [hpctrain.data.aggregate, hpctrain.data.expressions], ids=lambda m: m.__name__
)
def test_other_names_of_ray_say_what_to_use_instead(module: object) -> None:
    name = {"aggregate": "AggregateFn", "expressions": "udf"}[module.__name__.split(".")[-1]]
    with pytest.raises(UnavailableNameError, match=rf"has no {name}: .*map_(groups|batches)\("):
        getattr(module, name)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = module.nothing
