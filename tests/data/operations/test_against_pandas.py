"""Operations on random tables, with everything that is missing or odd, against pandas."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow
import pyarrow.parquet
import pytest

from hpctrain.data import Dataset, from_pandas, read_parquet

SEEDS = range(6)
LARGE = 2**53 + 1


def table(seed: int) -> pandas.DataFrame:
    """Return a table of 0, 1 or some rows; keys come many times, some are missing."""
    random = np.random.default_rng(seed)
    rows = [0, 1, 2, 7, 50, 300][seed % 6]
    words = np.array(["b", "a", "", "ß", None, "zz\n"], dtype=object)
    floats = np.array([1.5, -2.0, 0.0, np.nan, np.inf, 1e300])
    days = np.array(["2026-01-02", "1969-12-31", "NaT", "2262-01-01"], dtype="datetime64[us]")
    return pandas.DataFrame(
        {
            "word": pandas.Series(words[random.integers(0, 6, rows)], dtype=object),
            "number": random.integers(-3, 3, rows),
            "large": LARGE + random.integers(0, 5, rows),
            "float": floats[random.integers(0, 6, rows)],
            "day": days[random.integers(0, 4, rows)],
            "is": random.integers(0, 2, rows).astype(bool),
            "at": np.arange(rows),
        }
    )


def as_dataset(frame: pandas.DataFrame, how: str, folder: Path) -> Dataset:
    if how == "memory":
        return from_pandas(frame)
    # Files of unlike size, some without a row.
    cuts = [0, 0, len(frame) // 3, len(frame) // 2 + len(frame) % 2, len(frame)]
    for part, (start, stop) in enumerate(pairwise(cuts)):
        some = pyarrow.Table.from_pandas(frame.iloc[start:stop], preserve_index=False)
        some = some.set_column(0, "word", some["word"].cast("string"))
        pyarrow.parquet.write_table(some, folder / f"{part}.parquet", row_group_size=11)
    return read_parquet(folder)


def values(array: Any) -> list[Any]:
    """Return values such that equal ones are equal, and what is missing is None."""
    found = list(pandas.Series(array, dtype=object))
    return [None if pandas.isna(v) else pandas.Timestamp(v) if _is_time(v) else v for v in found]


def _is_time(value: Any) -> bool:
    return isinstance(value, (np.datetime64, pandas.Timestamp)) or hasattr(value, "isoformat")


@pytest.fixture(params=[(seed, how) for seed in SEEDS for how in ("memory", "files")], ids=str)
def both(request: Any, tmp_path: Path) -> tuple[pandas.DataFrame, Dataset]:
    seed, how = request.param
    return table(seed), as_dataset(table(seed), how, tmp_path)


@pytest.mark.parametrize("keys", [["word"], ["float"], ["day", "large"], ["is", "word", "number"]])
def test_sorted_rows_are_those_of_a_stable_sort(
    both: tuple[pandas.DataFrame, Dataset], keys: list[str]
):
    frame, dataset = both
    for descending in (False, True):
        expected = frame.copy()
        # One key after another, the last one first: pandas sorts several with a sort that is not
        # stable when it descends.
        for key in reversed(keys):
            expected = expected.sort_values(key, ascending=not descending, kind="stable")
        found = dataset.sort(keys, descending=descending).to_numpy()
        assert found["at"].tolist() == expected["at"].tolist()
        assert values(found["word"]) == values(expected["word"])


@pytest.mark.parametrize("keys", [["word"], ["number"], ["day"], ["float", "is"]])
def test_groups_are_those_of_pandas(both: tuple[pandas.DataFrame, Dataset], keys: list[str]):
    frame, dataset = both
    groups = frame.groupby(keys, dropna=False, sort=True)
    counts = groups.size()
    found = dataset.groupby(keys).count().to_pandas()
    assert [*found] == [*keys, "count()"]
    assert found["count()"].tolist() == counts.tolist()
    assert values(found[keys[0]]) == values(counts.index.get_level_values(0))
    large = dataset.groupby(keys).max("large").to_numpy()
    assert large["max(large)"].tolist() == groups["large"].max().tolist()
    means = dataset.groupby(keys).mean("number").to_numpy()["mean(number)"]
    np.testing.assert_allclose(means.astype(float), groups["number"].mean())
    spread = dataset.groupby(keys).std("number").to_numpy()["std(number)"]
    np.testing.assert_allclose(spread.astype(float), groups["number"].std())


def test_groups_that_a_function_is_given_are_those_of_pandas(
    both: tuple[pandas.DataFrame, Dataset],
):
    frame, dataset = both
    if frame.empty:
        assert dataset.groupby("word").map_groups(lambda batch: batch).take_all() == []
        return
    found = dataset.groupby(["word", "number"]).map_groups(lambda f: f, batch_format="pandas")
    expected = [g for _, g in frame.groupby(["word", "number"], dropna=False, sort=True)]
    assert found.to_numpy()["at"].tolist() == pandas.concat(expected)["at"].tolist()


@pytest.mark.parametrize("column", ["number", "large", "float", "day", "word"])
def test_aggregates_are_those_of_pandas(both: tuple[pandas.DataFrame, Dataset], column: str):
    frame, dataset = both
    series = frame[column].dropna()
    smallest, largest = dataset.min(column), dataset.max(column)
    if series.empty:
        assert (smallest, largest) == (None, None)
        return
    assert values([smallest, largest]) == values([series.min(), series.max()])
    if column in ("number", "large"):
        assert dataset.sum(column) == sum(series.tolist())
    if column == "number":
        assert dataset.mean(column) == pytest.approx(series.mean())
        assert dataset.std(column) == pytest.approx(series.std(), nan_ok=True)


@pytest.mark.parametrize("column", ["word", "number", "large", "float", "day", "is"])
def test_unique_values_are_those_of_pandas(both: tuple[pandas.DataFrame, Dataset], column: str):
    frame, dataset = both
    assert values(dataset.unique(column)) == values(frame[column].unique())
    left = dataset.unique(column, ignore_nulls=True)
    assert values(left) == values(frame[column].dropna().unique())


def test_a_filter_gives_the_same_rows_by_function_by_batch_and_by_expression(
    both: tuple[pandas.DataFrame, Dataset],
):
    frame, dataset = both
    expected = frame[(frame["float"] > 0) & ~frame["word"].isin(["a", None])]
    expected = expected[expected["word"].notna()]["at"].tolist()
    by_row = dataset.filter(lambda r: r["float"] > 0 and r["word"] not in ("a", None))
    by_batch = dataset.filter(
        lambda f: (f["float"] > 0) & f["word"].notna() & (f["word"] != "a"), batch_format="pandas"
    )
    by_text = dataset.filter(expr="float > 0 and word != 'a'")
    for found in (by_row, by_batch, by_text):
        assert found.to_numpy()["at"].tolist() == expected
        assert found.count() == len(expected)
        assert found.to_numpy()["day"].dtype.kind == "M"


def test_union_and_zip_put_datasets_together_as_pandas_does(
    both: tuple[pandas.DataFrame, Dataset],
):
    frame, dataset = both
    # A large integer beside a missing one is in no float.
    frame, dataset = frame.drop(columns="large"), dataset.drop_columns("large")
    few = dataset.filter(expr="number > 0").drop_columns(["number", "is"])
    expected = pandas.concat([frame, frame[frame["number"] > 0].drop(columns=["number", "is"])])
    union = dataset.union(few)
    assert union.count() == len(expected)
    batch = union.to_numpy()
    assert [*batch] == [*frame]
    for name in ("word", "number", "float", "day", "at", "is"):
        assert values(batch[name]) == values(expected[name])
    beside = dataset.zip(dataset.select_columns(["at", "word"]), dataset.select_columns("at"))
    assert beside.columns() == [*frame, "at_1", "word_1", "at_2"]
    batch = beside.to_numpy()
    assert batch["at"].tolist() == batch["at_1"].tolist() == batch["at_2"].tolist()
    assert values(batch["word"]) == values(batch["word_1"])


def test_rows_are_mapped_and_taken_as_they_are(both: tuple[pandas.DataFrame, Dataset]):
    frame, dataset = both
    again = dataset.map(lambda row: row)
    assert again.count() == len(frame)
    if not frame.empty:
        for name, array in again.to_numpy().items():
            assert values(array) == values(frame[name])
    assert [row["large"] for row in dataset.take_all()] == frame["large"].tolist()
    tripled = dataset.flat_map(lambda row: [row] * (row["number"] % 3))
    expected = np.repeat(frame["at"], frame["number"] % 3).tolist()
    assert [row["at"] for row in tripled.take_all()] == expected
