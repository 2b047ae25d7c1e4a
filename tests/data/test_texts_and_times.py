"""Texts and times come back from files as what they were, in the types that batches have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas
import pyarrow.parquet
import pytest

from hpctrain import ConfigError
from hpctrain.data import (
    Dataset,
    from_items,
    from_numpy,
    read_csv,
    read_hdf5,
    read_numpy,
    read_parquet,
)
from hpctrain.data.times import times_of

Examples = Callable[[Callable[[np.random.Generator], None]], None]
TEXTS = ["", "a", "1", "é", "日本", "0" * 20, "a b"]
UNITS = ("s", "ms", "us", "ns")


def in_memory(columns: dict[str, np.ndarray]) -> dict[str, list[Any]]:
    return {name: array.tolist() for name, array in columns.items()}


def test_hdf5_of_h5py_is_read_as_h5py_reads_it(tmp_path: Path, each_example: Examples) -> None:
    def check(rng: np.random.Generator) -> None:
        rows = int(rng.integers(1, 6))
        texts = rng.choice(TEXTS, rows)
        coded = np.char.encode(texts, "utf-8")
        times = rng.integers(-(10**9), 10**9, rows).astype(f"M8[{rng.choice(UNITS)}]")
        path = tmp_path / f"{rng.integers(2**60)}.h5"
        chunks = {"chunks": (min(2, rows),), "compression": "gzip"} if rng.random() < 0.5 else {}
        with h5py.File(path, "w") as file:
            for name, values, dtype in (
                ("fixed", coded, coded.dtype),
                ("utf8", coded.astype(h5py.string_dtype("utf-8", coded.dtype.itemsize)), None),
                ("free", texts.astype(object), h5py.string_dtype()),
                ("big", rng.normal(size=rows).astype(">f8"), ">f8"),
                ("ints", rng.integers(-9, 9, rows).astype(">i2"), ">i2"),
                ("time", times.astype(h5py.opaque_dtype(times.dtype)), None),
            ):
                file.create_dataset(name, data=values, dtype=dtype, **chunks)
            layout = h5py.VirtualLayout((rows,), dtype=coded.dtype)
            layout[:] = h5py.VirtualSource(file["fixed"])
            file.create_virtual_dataset("virtual", layout)
            expected = {n: d[()] for n, d in file.items()}
        for name in ("fixed", "utf8", "free", "virtual"):
            expected[name] = texts.astype(object)
        dataset = read_hdf5(path)
        found = dataset.to_numpy()
        assert in_memory(found) == in_memory(expected)
        assert {n: a.dtype for n, a in found.items()} == {
            n: c.dtype for n, c in dataset.schema().items()
        }
        assert all(array.dtype.isnative for array in found.values())

    each_example(check)


def test_numpy_files_are_read_as_numpy_reads_them(tmp_path: Path, each_example: Examples) -> None:
    def check(rng: np.random.Generator) -> None:
        rows = int(rng.integers(1, 6))
        texts = rng.choice(TEXTS, (rows, 2))
        arrays = {"u": texts, "s": np.char.encode(texts, "utf-8"), "b": rng.normal(size=rows)}
        arrays["b"] = arrays["b"].astype(rng.choice([">f4", "<f8", ">f8"]))
        path = tmp_path / f"{rng.integers(2**60)}.npz"
        (np.savez if rng.random() < 0.5 else np.savez_compressed)(path, **arrays)
        dataset = read_numpy(path)
        found = dataset.to_numpy()
        assert found["u"].tolist() == found["s"].tolist() == texts.tolist()
        assert found["b"].tolist() == arrays["b"].tolist()
        kinds = {n: c.dtype for n, c in dataset.schema().items()}
        assert kinds == {n: a.dtype for n, a in found.items()}
        assert kinds["u"].kind == kinds["s"].kind == "O"
        assert kinds["b"].isnative

    each_example(check)


def test_what_is_written_is_read_again(tmp_path: Path, each_example: Examples) -> None:
    def check(rng: np.random.Generator) -> None:
        rows = int(rng.integers(1, 6))
        columns = {
            "text": rng.choice(TEXTS, rows).astype(object),
            "time": rng.integers(-(10**9), 10**9, rows).astype(f"M8[{rng.choice(UNITS)}]"),
            "number": rng.normal(size=rows).astype(rng.choice([">f8", "<f4"])),
        }
        dataset = from_numpy(columns)
        ways: list[tuple[str, Any, Any]] = [
            (".h5", Dataset.write_hdf5, read_hdf5),
            (".parquet", Dataset.write_parquet, read_parquet),
            ("", Dataset.write_numpy, read_numpy),
        ]
        suffix, write, read = ways[rng.integers(3)]
        again = read(write(dataset, tmp_path / f"{rng.integers(2**60)}{suffix}"))
        found = again.to_numpy()
        # Parquet has no seconds, so they become milliseconds.
        assert times_of(found.pop("time")) == times_of(columns.pop("time"))
        assert in_memory(found) == in_memory(columns)

    each_example(check)


def test_bytes_of_hdf5_that_are_no_text_are_refused_with_their_place(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.array([b"\xff\xfe"])
    with pytest.raises(ConfigError, match=r"a\.h5: '/x': bytes of type \|S2 are not text in UTF-8"):
        read_hdf5(tmp_path / "a.h5").to_numpy()


def test_a_categorical_text_of_hdf5_is_the_one_of_csv(tmp_path: Path) -> None:
    from hpctrain.preprocessors import OrdinalEncoder

    (tmp_path / "a.csv").write_text("c\nred\nblue\n")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["c"] = np.array([b"blue", b"red"])
    encoder = OrdinalEncoder(["c"]).fit(read_csv(tmp_path / "a.csv"))
    encoded = encoder.transform(read_hdf5(tmp_path / "a.h5")).to_numpy()
    assert encoded["c"].tolist() == [0.0, 1.0]


@pytest.mark.parametrize("cell", [lambda t: t, lambda t: [t], lambda t: {"in": t}])
@pytest.mark.parametrize(
    "times",
    [
        [pandas.Timedelta(1500, "ns"), pandas.Timedelta(2, "s")],
        [pandas.Timestamp(1500), None],
        [pandas.Timestamp(1500, tz="UTC"), pandas.Timestamp(0, tz="UTC")],
    ],
    ids=["durations", "times", "times of a zone"],
)
def test_arrow_has_the_nanoseconds_of_times_of_pandas(
    times: list[Any], cell: Callable[[Any], Any], tmp_path: Path
) -> None:
    dataset = from_numpy({"t": np.array([*map(cell, times), 0], dtype=object)[:-1]})
    expected = [cell(time) for time in times]
    assert dataset.to_arrow()["t"].to_pylist() == expected
    again = pyarrow.parquet.read_table(dataset.write_parquet(tmp_path / "t.parquet"))
    assert again["t"].to_pylist() == expected


def test_times_of_whole_microseconds_keep_their_type() -> None:
    far = pandas.Timestamp("3000-01-01").as_unit("us")
    near = pandas.Timestamp(1500)
    assert str(from_items([far.round("us")]).to_arrow()["item"].type) == "timestamp[us]"
    with pytest.raises(
        ConfigError,
        match=r"some times have nanoseconds, but not all fit into timestamp\[ns\]: .+ Round",
    ):
        from_items([near, far]).to_arrow()


def test_durations_that_differ_by_nanoseconds_are_sorted_and_grouped_apart() -> None:
    one, two = pandas.Timedelta(1, "ns"), pandas.Timedelta(2, "ns")
    dataset = from_numpy({"t": np.array([two, one, None], dtype=object)})
    assert dataset.sort("t").take_all() == [{"t": one}, {"t": two}, {"t": None}]
    assert dataset.groupby("t").count().count() == 3
