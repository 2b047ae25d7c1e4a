from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hpctrain.data import Dataset, from_numpy, read_csv, read_hdf5, read_numpy, read_parquet
from hpctrain.errors import ConfigError

ROWS = 5000
X = np.arange(ROWS * 3, dtype="f4").reshape(ROWS, 3)
Y = np.arange(ROWS)


@pytest.fixture
def dataset() -> Dataset:
    return from_numpy({"x": X, "y": Y})


@pytest.mark.parametrize(
    ("write", "read", "name"),
    [
        (Dataset.write_parquet, read_parquet, "a.parquet"),
        (Dataset.write_hdf5, read_hdf5, "a.h5"),
        (Dataset.write_numpy, read_numpy, "a"),
    ],
)
def test_what_was_written_is_read_again(
    dataset: Dataset, tmp_path: Path, write: Any, read: Callable[[Path], Dataset], name: str
):
    path = tmp_path / "new" / name
    assert write(dataset, path) == path
    batch = read(path).to_numpy()
    assert (batch["x"].dtype, batch["y"].dtype) == (X.dtype, Y.dtype)
    assert (batch["x"] == X).all()
    assert (batch["y"] == Y).all()
    with pytest.raises(ConfigError, match=r"exists. Delete it, or give another path"):
        write(dataset, path)
    few = dataset.filter(lambda b: b["y"] % 1000 == 0)
    write(few, path.with_stem("few"))
    assert read(path.with_stem("few")).to_numpy()["y"].tolist() == [0, 1000, 2000, 3000, 4000]
    none = dataset.filter(lambda b: b["y"] < 0)
    write(none, path.with_stem("none"))
    assert read(path.with_stem("none")).num_rows == 0
    assert read(path.with_stem("none")).schema() == dataset.schema()


def test_csv_has_no_arrays(dataset: Dataset, tmp_path: Path):
    with pytest.raises(ConfigError, match="columns 'x' have an array in each row"):
        dataset.write_csv(tmp_path / "a.csv")
    labels = dataset.drop_columns(["x"]).map_batches(lambda b: {**b, "w": b["y"].astype(str)})
    labels.write_csv(tmp_path / "a.csv")
    batch = read_csv(tmp_path / "a.csv", dtypes={"w": "U9"}).to_numpy()
    assert batch["y"].tolist() == Y.tolist()
    assert batch["w"][-1] == "4999"


def test_hdf5_is_written_in_one_piece_or_compressed_and_into_a_group(
    dataset: Dataset, tmp_path: Path
):
    dataset.write_hdf5(tmp_path / "a.h5")
    dataset.write_hdf5(tmp_path / "b.h5", compression="gzip", group="train")
    with h5py.File(tmp_path / "a.h5") as file:
        assert file["x"].chunks is None
    with h5py.File(tmp_path / "b.h5") as file:
        assert file["train/x"].compression == "gzip"
    assert (read_hdf5(tmp_path / "b.h5", group="train").to_numpy()["x"] == X).all()
    words = from_numpy({"word": np.array(["a", "bc"])}).map_batches(lambda b: b)
    words.write_hdf5(tmp_path / "fixed.h5")
    words = from_numpy({"word": ["a", "bc"]})
    words.write_hdf5(tmp_path / "words.h5")
    assert read_hdf5(tmp_path / "words.h5").to_numpy()["word"].tolist() == ["a", "bc"]
    with pytest.raises(ConfigError, match="columns 'word' are no numbers"):
        words.write_numpy(tmp_path / "words")


def test_nothing_is_left_of_a_file_that_could_not_be_written(dataset: Dataset, tmp_path: Path):
    def fail(batch: dict[str, Any]) -> dict[str, Any]:
        if len(batch["y"]) > 2:
            raise RuntimeError("no more")
        return batch

    for write, name in (
        (Dataset.write_parquet, "a.parquet"),
        (Dataset.write_hdf5, "a.h5"),
        (Dataset.write_numpy, "a"),
    ):
        with pytest.raises(RuntimeError, match="no more"):
            write(dataset.map_batches(fail), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_an_ending_that_says_something_else_is_refused(dataset: Dataset, tmp_path: Path):
    for write, name in (
        (dataset.write_parquet, "a.h5"),
        (dataset.write_hdf5, "a.parquet"),
        (dataset.drop_columns(["x"]).write_csv, "a"),
        (dataset.write_numpy, "a.npz"),
    ):
        with pytest.raises(ConfigError, match=r"should end with|a path without"):
            write(tmp_path / name)
