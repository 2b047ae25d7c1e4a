from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas
import pytest
from pyarrow import parquet

from hpctrain.data import (
    Dataset,
    from_arrow,
    from_numpy,
    read_csv,
    read_hdf5,
    read_numpy,
    read_parquet,
    source,
    stream,
)
from hpctrain.data import write as write_module
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
    with pytest.raises(ConfigError, match="column 'word' holds objects or misses texts"):
        from_numpy({"word": ["a", None]}).write_numpy(tmp_path / "words")


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


@pytest.mark.parametrize("name", ["a.parquet", "a.csv", "a.h5", "arrays"])
def test_a_tilde_is_the_home_directory_as_in_readers(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "home").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "elsewhere")
    dataset = from_numpy({"y": Y})
    write = {
        "a.parquet": dataset.write_parquet,
        "a.csv": dataset.write_csv,
        "a.h5": dataset.write_hdf5,
        "arrays": dataset.write_numpy,
    }[name]
    assert write(f"~/new/{name}") == tmp_path / "home" / "new" / name
    assert [path.name for path in (tmp_path / "home" / "new").iterdir()] == [name]
    assert not [*(tmp_path / "elsewhere").iterdir()]


def test_an_ending_that_says_something_else_is_refused(dataset: Dataset, tmp_path: Path):
    for write, name in (
        (dataset.write_parquet, "a.h5"),
        (dataset.write_hdf5, "a.parquet"),
        (dataset.drop_columns(["x"]).write_csv, "a"),
        (dataset.write_numpy, "a.npz"),
    ):
        with pytest.raises(ConfigError, match=r"does not end with|a path without"):
            write(tmp_path / name)


@pytest.mark.parametrize(
    "values",
    [
        np.array([1.0, 2.0, np.nan, 4.0]),
        np.array([1, 2, 300, 4]),
        np.array(["a", "b", 3, "d"], object),
    ],
    ids=["nan", "large", "mixed"],
)
@pytest.mark.parametrize("name", ["a.h5", "a.parquet", "a.csv", "a"])
def test_rows_that_do_not_fit_the_type_of_the_first_ones_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: np.ndarray, name: str
):
    def smallest(batch: dict[str, Any]) -> dict[str, Any]:
        of_batch = values[batch["n"]]
        if of_batch.dtype.kind in "if" and (of_batch < 300).all():
            of_batch = of_batch.astype("u1")
        return {"c": of_batch}

    monkeypatch.setattr(source, "block_rows", lambda schema: 1)
    monkeypatch.setattr(stream, "READ_BYTES", 16)
    dataset = from_numpy({"n": np.arange(4)}).map_batches(smallest)
    writers = {
        ".h5": dataset.write_hdf5,
        ".parquet": dataset.write_parquet,
        "": dataset.write_numpy,
    }
    write_to = writers.get(Path(name).suffix, dataset.write_csv)
    with pytest.raises(ConfigError, match=r"'c'"):
        write_to(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a.h5", "a.parquet", "a.csv"])
def test_bytes_of_fixed_length_are_texts_of_any_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    values = np.array(["a", "b", "long", "d"], "S4")
    monkeypatch.setattr(source, "block_rows", lambda schema: 1)
    monkeypatch.setattr(stream, "READ_BYTES", 16)
    # As long as the longest of its batch.
    dataset = from_numpy({"n": np.arange(4)}).map_batches(
        lambda batch: {"c": np.array(values[batch["n"]].tolist())}
    )
    write, read = {
        "a.h5": (Dataset.write_hdf5, read_hdf5),
        "a.parquet": (Dataset.write_parquet, read_parquet),
        "a.csv": (Dataset.write_csv, read_csv),
    }[name]
    write(dataset, tmp_path / name)
    assert read(tmp_path / name).to_numpy()["c"].tolist() == ["a", "b", "long", "d"]


def test_a_line_of_csv_whose_only_value_is_missing_is_not_lost(tmp_path: Path):
    for number, values in enumerate((["a", None, ""], [1, None, 3], [None, None])):
        path = tmp_path / f"{number}.csv"
        from_numpy({"c": np.array(values, object)}).write_csv(path)
        assert read_csv(path).num_rows == len(values)
        assert len(pandas.read_csv(path)) == len(values)
    times = np.array(["2026-01-02T03:04:05", "NaT"], "M8[s]")
    from_numpy({"c": times}).write_csv(tmp_path / "times.csv")
    assert len(pandas.read_csv(tmp_path / "times.csv")) == 2


def test_a_first_row_group_without_a_value_has_the_type_of_later_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(write_module, "ROW_GROUP_BYTES", 2 * 8)
    for values in ([None, None, "a"], [None, None, None, [1, 2]], [None, None, None]):
        column = np.empty(len(values), object)
        column[:] = values
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.parquet"
        from_numpy({"c": column}).write_parquet(path)
        assert parquet.read_table(path).column("c").to_pylist() == values


def test_what_hdf5_does_not_have_is_refused_before_anything_is_written(tmp_path: Path):
    for values, message in (
        (np.array([b"abc"], "V3"), "which HDF5 does not support"),
        (np.array(["a", None], object), "has None, a NoneType"),
        (np.array([[1, "a"]], object), "has 1, a int"),
    ):
        with pytest.raises(ConfigError, match=message):
            from_numpy({"c": values}).write_hdf5(tmp_path / "a.h5")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "values",
    [
        np.array([[True, False, True], [False, False, True]]),
        np.arange(12).reshape(2, 3, 2) % 3 == 0,
        np.array([["2026-01-01", "NaT"], ["1969-12-31", "2026-11-23"]], "M8[ns]"),
        np.array([["a", None], ["", "bc"]], object),
        np.array([[1.5, np.nan], [2.0, -0.0]], ">f4"),
        np.array([2**62, -1], ">i8"),
        np.zeros((0, 3), bool),
        np.zeros((0, 3), "f4"),
    ],
    ids=["bool", "bool3d", "times", "texts", "big-endian", "big-endian1d", "no-bool", "no-row"],
)
def test_arrays_of_any_type_go_through_arrow_and_parquet(tmp_path: Path, values: np.ndarray):
    dataset = from_numpy({"c": values})
    dataset.write_parquet(tmp_path / "a.parquet")
    for again in (read_parquet(tmp_path / "a.parquet"), from_arrow(dataset.to_arrow())):
        array = again.to_numpy()["c"]
        assert again.schema()["c"].shape == values.shape[1:]
        assert array.dtype == values.dtype.newbyteorder("=")
        np.testing.assert_array_equal(array, values)


def test_what_arrow_does_not_have_is_refused(tmp_path: Path):
    for values, message in (
        (np.ones(2, complex), "column 'c' of type complex128 cannot become an Arrow column"),
        (np.ones((2, 2), complex), "store complex numbers as two columns"),
        (np.zeros((2, 0)), "Parquet does not support"),
        (np.array(["2026-01-01T01"], "M8[h]"), r"datetime64\[h\] cannot become an Arrow column"),
    ):
        with pytest.raises(ConfigError, match=message):
            from_numpy({"c": values}).write_parquet(tmp_path / "a.parquet")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("values", "kinds"),
    [
        # Arrow takes the kind of the first value for all: times lose their hours.
        (
            [datetime.date(2024, 1, 1), np.datetime64("2024-01-02T03:04", "us").item()],
            "date and datetime",
        ),
        (
            [
                datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc),
                None,
                np.datetime64("2024-01-01", "us").item(),
            ],
            "datetime and datetime with a time zone",
        ),
        ([datetime.timedelta(1), 1], "int and timedelta"),
        ([b"a", "a"], "bytes and str"),
    ],
)
def test_kinds_of_objects_that_arrow_would_cast_are_refused(
    tmp_path: Path, values: list[Any], kinds: str
):
    array = np.empty(len(values), object)
    array[:] = values
    with pytest.raises(ConfigError, match=f"column 'c' holds {kinds}, and Arrow would"):
        from_numpy({"c": array}).write_parquet(tmp_path / "a.parquet")


@pytest.mark.parametrize("name", ["a/b", ".", "..", "", "a\0b"])
def test_names_that_are_paths_in_hdf5_are_refused(tmp_path: Path, name: str):
    rows = from_numpy({"x": np.arange(2), name: np.arange(2)})
    with pytest.raises(ConfigError, match=r"cannot be written to HDF5.*Rename it"):
        rows.write_hdf5(tmp_path / "a.h5")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["file", "a/b", "a\0b"])
def test_names_that_numpy_takes_for_something_else_are_refused(tmp_path: Path, name: str):
    with pytest.raises(ConfigError, match=r"cannot be written to .npz.*Rename it"):
        from_numpy({name: np.arange(2)}).write_numpy(tmp_path / "a")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["a\0b", "\udc80"])
def test_texts_that_hdf5_does_not_have_are_refused(tmp_path: Path, text: str):
    with pytest.raises(ConfigError, match=r"column .x. has .*at value 1 after row 0"):
        from_numpy({"x": np.array(["a", text], object)}).write_hdf5(tmp_path / "a.h5")
    assert list(tmp_path.iterdir()) == []


def test_lists_are_refused_by_csv(tmp_path: Path):
    lists = np.empty(2, object)
    lists[:] = [np.arange(2), None]
    with pytest.raises(ConfigError, match=r"column 'x' has values of type list.*Write Parquet"):
        from_numpy({"x": lists}).write_csv(tmp_path / "a.csv")
    assert list(tmp_path.iterdir()) == []


DAY = datetime.date(2024, 1, 1)
AT_THREE = datetime.datetime(2024, 1, 1, 3, tzinfo=datetime.timezone.utc).replace(tzinfo=None)


@pytest.mark.parametrize(
    ("first", "later"),
    [
        (1, 0.5),
        (DAY, AT_THREE),
        (AT_THREE, AT_THREE.replace(tzinfo=datetime.timezone.utc)),
        (datetime.timedelta(1), 1),
        ([1], [0.5]),
        ({"a": 1}, {"a": 0.5}),
        ({"a": 1}, {"a": 1, "b": 2}),
        (0.5, 2**53 + 1),
    ],
)
def test_a_later_value_is_not_cut_to_the_type_of_the_first_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: Any, later: Any
):
    monkeypatch.setattr(write_module, "ROW_GROUP_BYTES", 8)
    values = np.empty(3, object)
    values[:] = [first, None, later]
    dataset = from_numpy({"n": np.arange(3)}).map_batches(lambda batch: {"x": values[batch["n"]]})
    with pytest.raises(ConfigError, match=r"rows 2 to 3: the values of column 'x' are not of one"):
        dataset.write_parquet(tmp_path / "a.parquet")
    values[2] = first
    dataset.write_parquet(tmp_path / "a.parquet")
    assert parquet.read_table(tmp_path / "a.parquet")["x"].to_pylist() == [first, None, first]
