from __future__ import annotations

import pickle
from pathlib import Path

import h5py
import numpy as np
import pandas
import pyarrow
import pytest

from hpctrain.data import Dataset, from_arrow, from_numpy, from_pandas, read_hdf5
from hpctrain.errors import ConfigError


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    rows = np.arange(1000)
    for part in range(2):
        with h5py.File(tmp_path / f"part{part}.h5", "w") as file:
            file["x"] = (rows[:, None] * np.ones(3)).astype("f4")
            file["y"] = rows + 1000 * part
    return read_hdf5(tmp_path)


def test_it_pickles_to_less_than_a_kilobyte_a_file(dataset: Dataset):
    assert len(pickle.dumps(dataset)) < 2000
    again = pickle.loads(pickle.dumps(dataset))
    assert (again.to_numpy()["y"] == np.arange(2000)).all()


@pytest.mark.parametrize("batch_size", [1, 7, 999, 1000, 5000])
def test_batches_are_all_rows_in_order_and_full_but_for_the_last(dataset: Dataset, batch_size: int):
    batches = list(dataset.iter_batches(batch_size=batch_size))
    assert (np.concatenate([b["y"] for b in batches]) == np.arange(2000)).all()
    assert [len(b["x"]) for b in batches[:-1]] == [batch_size] * (len(batches) - 1)


def test_batches_come_in_three_forms(dataset: Dataset):
    frame = next(dataset.iter_batches(batch_size=4, batch_format="pandas"))
    assert isinstance(frame, pandas.DataFrame)
    assert frame["x"][1].tolist() == [1, 1, 1]
    table = next(dataset.iter_batches(batch_size=4, batch_format="pyarrow"))
    assert isinstance(table, pyarrow.Table)
    for again in (from_pandas(frame), from_arrow(table)):
        batch = again.to_numpy()
        assert (batch["x"].shape, batch["x"].dtype) == ((4, 3), np.float32)
        assert batch["y"].tolist() == [0, 1, 2, 3]
    with pytest.raises(ConfigError, match=r"batch_format='torch'\. One of 'numpy', 'pandas'"):
        dataset.iter_batches(batch_format="torch")  # type: ignore[arg-type]


def test_a_missing_column_is_refused_with_those_that_exist(dataset: Dataset):
    with pytest.raises(ConfigError, match=r"no column 'z'\. The dataset has 'x', 'y'"):
        dataset.select_columns(["z"])


def test_columns_of_unlike_length_are_refused():
    with pytest.raises(ConfigError, match="unlike numbers of rows: 'x' 3, 'y' 2"):
        from_numpy({"x": np.zeros(3), "y": np.zeros(2)})
