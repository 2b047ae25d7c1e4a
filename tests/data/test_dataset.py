from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas
import pyarrow
import pytest

from hpctrain.data import (
    Dataset,
    from_arrow,
    from_items,
    from_numpy,
    from_pandas,
    read_csv,
    read_hdf5,
    read_numpy,
    read_parquet,
)
from hpctrain.errors import ConfigError


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    rows = np.arange(1000)
    for part in range(2):
        with h5py.File(tmp_path / f"part{part}.h5", "w") as file:
            file["x"] = (rows[:, None] * np.ones(3)).astype("f4")
            file["y"] = rows + 1000 * part
    return read_hdf5(tmp_path)


def all_of(dataset: Dataset, column: str = "y") -> list[Any]:
    return dataset.to_numpy()[column].tolist()


def test_it_pickles_to_less_than_a_kilobyte_a_file(dataset: Dataset):
    assert len(pickle.dumps(dataset)) < 2000
    assert all_of(pickle.loads(pickle.dumps(dataset))) == list(range(2000))


@pytest.mark.parametrize("batch_size", [1, 7, 999, 1000, 5000])
def test_batches_are_all_rows_in_order_and_full_but_for_the_last(dataset: Dataset, batch_size: int):
    batches = list(dataset.iter_batches(batch_size=batch_size))
    assert (np.concatenate([b["y"] for b in batches]) == np.arange(2000)).all()
    assert [len(b["x"]) for b in batches[:-1]] == [batch_size] * (len(batches) - 1)


def test_batches_come_in_three_forms_and_each_can_be_a_dataset_again(dataset: Dataset):
    frame = next(dataset.iter_batches(batch_size=4, batch_format="pandas"))
    assert isinstance(frame, pandas.DataFrame)
    assert frame["x"][1].tolist() == [1, 1, 1]
    table = next(dataset.iter_batches(batch_size=4, batch_format="pyarrow"))
    assert isinstance(table, pyarrow.Table)
    for again in (from_pandas(frame), from_arrow(table)):
        batch = again.to_numpy()
        assert (batch["x"].shape, batch["x"].dtype) == ((4, 3), np.float32)
        assert batch["y"].tolist() == [0, 1, 2, 3]
    with pytest.raises(
        ConfigError, match=r"batch_format='torch' is unknown. Use 'numpy', 'pandas'"
    ):
        dataset.iter_batches(batch_format="torch")  # type: ignore[arg-type]


def test_strings_and_missing_values_survive_all_three_forms():
    table = pyarrow.table({"s": ["a", None, "c"], "n": [1, None, 3], "b": [True, False, None]})
    batch = from_arrow(table).to_numpy()
    assert batch["s"].tolist() == ["a", None, "c"]
    assert np.isnan(batch["n"][1])
    assert batch["b"].tolist() == [True, False, None]
    again = from_arrow(from_arrow(table).to_arrow()).to_numpy()
    assert again["s"].tolist() == ["a", None, "c"]
    assert from_pandas(pandas.DataFrame({"s": ["a", "b"]})).to_numpy()["s"].tolist() == ["a", "b"]


def test_columns_of_pandas_own_integers_are_numbers():
    frame = pandas.DataFrame({"i": [1, 2], "m": [1, None]}).astype("Int32")
    batch = from_pandas(frame).to_numpy()
    assert (batch["i"].dtype, batch["m"].dtype) == (np.int32, np.float64)
    assert np.isnan(batch["m"][1])


def test_steps_are_done_when_batches_are_read(dataset: Dataset):
    calls = []

    def double(batch: dict[str, Any], by: int) -> dict[str, Any]:
        calls.append(len(batch["y"]))
        return {"z": batch["y"] * by}

    doubled = dataset.map_batches(double, fn_kwargs={"by": 2})
    assert calls == []
    assert (doubled.columns(), doubled.num_rows) == (["z"], 2000)
    assert all_of(doubled, "z") == list(range(0, 4000, 2))
    with_frames = dataset.map_batches(lambda f: f.assign(w=f.y + 1), batch_format="pandas")
    assert with_frames.columns() == ["x", "y", "w"]
    assert with_frames.drop_columns(["x"]).take(1) == [{"y": 0, "w": 1}]


def test_whether_a_step_keeps_rows_is_tried_on_the_first_ones(dataset: Dataset):
    halved = dataset.map_batches(lambda b: {"y": b["y"][::2]})
    assert not halved.keeps_rows
    assert halved.count() == 1000
    assert dataset.map_batches(lambda b: {"y": b["y"] + 1}).keeps_rows
    # Whether it was asked must not change what is sent to ranks, and is compared to resume.
    assert "keeps_rows" not in halved.__getstate__()


def test_a_step_that_loses_rows_against_its_word_is_refused(dataset: Dataset):
    few = dataset.map_batches(lambda b: {"y": b["y"][b["y"] < 9]}, keeps_rows=True)
    with pytest.raises(ConfigError, match=r"returned 9 rows for 2000\. .*keeps_rows=False"):
        few.to_numpy()
    said = dataset.map_batches(lambda b: {"y": b["y"][b["y"] < 9]}, keeps_rows=False)
    assert said.count() == 9


def test_a_filter_keeps_rows_and_only_a_pass_can_count_them(dataset: Dataset):
    even = dataset.filter(lambda batch: batch["y"] % 2 == 0)
    assert even.count() == 1000
    assert all_of(even.limit(3)) == [0, 2, 4]
    assert even.filter(lambda batch: batch["y"] < 0).limit(3).columns() == ["x", "y"]
    assert [len(b["y"]) for b in even.iter_batches(batch_size=400)] == [400, 400, 200]
    with pytest.raises(ConfigError, match=r"num_rows: .*Call count\(\) or materialize\(\)"):
        _ = even.num_rows
    assert [part.num_rows for part in even.train_test_split(0.5)] == [500, 500]
    with pytest.raises(ConfigError, match=r"returned int64\[2\] .*a bool for each row"):
        dataset.filter(lambda batch: batch["y"], batch_format="numpy").schema()
    assert even.filter(lambda batch: batch["y"] < 0).to_numpy()["x"].shape == (0, 3)


def test_selected_columns_are_the_only_ones_that_are_read(dataset: Dataset):
    assert dataset.select_columns(["y"]).columns_read == ("y",)
    assert list(next(dataset.iter_batches(columns=["y"]))) == ["y"]
    assert dataset.drop_columns(["x"]).columns() == ["y"]
    for refused in (dataset.select_columns, dataset.drop_columns):
        with pytest.raises(ConfigError, match=r"no column 'z'. The dataset has 'x', 'y'"):
            refused(["z"])
    assert dataset.select_columns("y").columns() == dataset.drop_columns("x").columns() == ["y"]


@pytest.mark.parametrize("operation", ["select_columns", "drop_columns"])
def test_columns_are_chosen_after_one_trial_of_the_steps(dataset: Dataset, operation: str):
    sizes: list[int] = []

    def double(batch: dict[str, Any]) -> dict[str, Any]:
        sizes.append(len(batch["y"]))
        return {**batch, "z": batch["y"] * 2}

    chosen = getattr(dataset.map_batches(double), operation)(["y", "x"])
    assert sizes == [2]
    assert chosen.columns() == (["y", "x"] if operation == "select_columns" else ["z"])


@pytest.mark.parametrize("filtered", [False, True])
def test_a_negative_number_of_rows_is_refused(dataset: Dataset, filtered: bool):
    some = dataset.filter(lambda batch: batch["y"] > 3) if filtered else dataset
    for take in (some.limit, some.take):
        with pytest.raises(ConfigError, match="limit=-1 is not a number of rows"):
            take(-1)


@pytest.mark.parametrize("count", [-1, 2.5])
def test_a_limit_is_a_number_of_rows(dataset: Dataset, count: float):
    with pytest.raises(ConfigError, match=r"is not a number of rows. Give an integer of 0 or more"):
        dataset.limit(count)  # type: ignore[arg-type]


def test_limit_and_split_take_rows_without_reading_them(dataset: Dataset):
    assert all_of(dataset.limit(3)) == [0, 1, 2]
    assert dataset.limit(5000).num_rows == 2000
    assert all_of(dataset.limit(0)) == []
    train, test = dataset.train_test_split(0.25)
    assert all_of(train) + all_of(test) == list(range(2000))
    assert test.num_rows == 500
    assert all_of(test.limit(2)) == [1500, 1501]
    assert len(pickle.dumps(test)) < 2000
    for impossible in (0, 1.0, 2000):
        with pytest.raises(ConfigError, match="leaves a part of 2000 rows empty"):
            dataset.train_test_split(impossible)


def test_a_shuffled_split_draws_each_row_once_from_all_over(dataset: Dataset):
    train, test = dataset.train_test_split(500, shuffle=True, seed=3)
    assert sorted(all_of(train) + all_of(test)) == list(range(2000))
    assert len(set(np.array(all_of(test)) // 500)) == 4
    assert all_of(pickle.loads(pickle.dumps(test))) == all_of(test)
    assert all_of(dataset.train_test_split(500, shuffle=True, seed=4)[1]) != all_of(test)


def test_materialize_reads_once_and_steps_are_not_repeated(dataset: Dataset):
    calls = []
    counted = dataset.map_batches(lambda b: calls.append(1) or b).materialize()
    done = len(calls)
    assert all_of(counted) == list(range(2000))
    assert len(calls) == done > 0


def test_what_is_in_memory_cannot_be_written_to_through_a_batch():
    mine = np.arange(4)
    batch = next(from_numpy({"x": mine}).iter_batches())
    with pytest.raises(ValueError, match="read-only"):
        batch["x"][0] = 9
    mine[0] = 7


def test_columns_of_unlike_length_are_refused():
    with pytest.raises(ConfigError, match="different numbers of rows: 'x' 3, 'y' 2"):
        from_numpy({"x": np.zeros(3), "y": np.zeros(2)})
    with pytest.raises(ConfigError, match="a value per row, not the single value 5"):
        from_numpy({"x": 5})


def test_rows_are_dicts(dataset: Dataset):
    first = dataset.take(1)[0]
    assert (first["x"].tolist(), first["y"]) == ([0, 0, 0], 0)
    assert sum(row["y"] for row in dataset.iter_rows()) == sum(range(2000))
    assert str(dataset) == "Dataset(2000 rows, x: float32[3], y: int64)"


@pytest.mark.parametrize("batch_size", [0, -1, 1.5])
def test_a_batch_size_that_is_no_number_of_rows_is_refused(dataset: Dataset, batch_size: Any):
    with pytest.raises(ConfigError, match=r"is not a number of rows. Give an integer of 1 or more"):
        dataset.iter_batches(batch_size=batch_size)


def datasets_of_all_kinds(tmp_path: Path) -> dict[str, Dataset]:
    whole = from_numpy({"x": np.arange(6.0), "y": np.arange(6)})
    whole.write_parquet(tmp_path / "a.parquet")
    whole.write_hdf5(tmp_path / "a.h5")
    whole.write_csv(tmp_path / "a.csv")
    whole.write_numpy(tmp_path / "a")
    return {
        "memory": whole,
        "arrow": from_arrow(whole.to_arrow()),
        "pandas": from_pandas(whole.to_pandas()),
        "parquet": read_parquet(tmp_path / "a.parquet"),
        "hdf5": read_hdf5(tmp_path / "a.h5"),
        "csv": read_csv(tmp_path / "a.csv"),
        "numpy": read_numpy(tmp_path / "a"),
        "ranges": whole.take_ranges([range(6)]),
        "shuffled": whole.random_shuffle(),
    }


def test_a_function_may_change_its_batch_whatever_the_rows_come_from(tmp_path: Path):
    def negate(batch: Any) -> Any:
        batch["x"] *= -1
        return batch

    for name, dataset in datasets_of_all_kinds(tmp_path).items():
        for _ in range(2):
            for batch_format in ("numpy", "pandas"):
                mapped = dataset.map_batches(negate, batch_format=batch_format)
                assert (mapped.to_numpy()["x"] == -dataset.to_numpy()["y"]).all(), name


def test_a_function_cannot_change_what_it_is_only_shown(tmp_path: Path):
    def change(batch: Any) -> Any:
        batch["x"][:] = 0
        return batch["x"] == 0

    for dataset in datasets_of_all_kinds(tmp_path).values():
        with pytest.raises(ValueError, match="read-only"):
            dataset.filter(change, batch_format="numpy").to_numpy()
        with pytest.raises(ValueError, match="read-only"):
            dataset.map_batches(change, zero_copy_batch=True).to_numpy()
    # What a function leaves alone is as it was.
    hdf5 = datasets_of_all_kinds(tmp_path / "again")["hdf5"]
    (batch,) = hdf5.map_batches(lambda b: {**b}, zero_copy_batch=True).iter_batches()
    assert batch["x"].flags.writeable


def test_columns_of_arrays_stay_what_they_are_in_data_frames_without_rows():
    dataset = from_numpy({"x": np.ones((4, 2, 3), "f4"), "y": np.arange(4)})
    none = dataset.map_batches(
        lambda frame: frame[frame["y"] > 9], batch_format="pandas", keeps_rows=False
    )
    assert none.to_numpy()["x"].shape == (0, 2, 3)
    assert str(none.schema()) == str(dataset.schema())
    some = dataset.filter(lambda b: b["y"] == 2).map_batches(lambda f: f, batch_format="pandas")
    batches = [b for r in range(4) for b in some.shard(rank=r, world_size=4).iter_batches()]
    assert np.concatenate([batch["x"] for batch in batches]).shape == (1, 2, 3)


class FirstRow:
    def __call__(self, batch):
        return {name: array[:1] for name, array in batch.items()}


def test_rows_are_counted_that_a_class_or_a_function_returns():
    rows = from_items([{"x": x} for x in range(9)])
    for fn, found in (
        (FirstRow, [0, 3, 6]),
        (lambda batch: {"x": batch["x"][batch["x"] < 5]}, [0, 1, 2, 3, 4]),
    ):
        mapped = rows.map_batches(fn, batch_size=3)
        assert mapped.count() == len(found)
        assert mapped.to_numpy()["x"].tolist() == found
        assert [row["x"] for row in mapped.take(2)] == found[:2]
        assert mapped.materialize().count() == len(found)
        assert mapped.schema().names == ["x"]
        assert rows.map_batches(fn, batch_size=3, keeps_rows=False).count() == len(found)
        # Ranks that share the rows have to know how many each of them has.
        with pytest.raises(ConfigError, match=r"returned \d rows for \d.*keeps_rows=False"):
            list(mapped.shard(rank=0, world_size=1).iter_batches(batch_size=9))
    batches = rows.map_batches(FirstRow, batch_size=3).iter_batches(batch_size=2)
    assert [batch["x"].tolist() for batch in batches] == [[0, 3], [6]]
    assert not hasattr(batches, "__len__")
    assert [row["x"] for row in rows.map_batches(FirstRow, batch_size=3).iter_rows()] == [0, 3, 6]
