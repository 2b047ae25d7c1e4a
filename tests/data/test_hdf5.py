from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
import pytest

from hpctrain.data import read_hdf5
from hpctrain.errors import ConfigError

X = np.arange(6000, dtype="f4").reshape(1000, 3, 2)
Y = np.arange(1000)


def write(path: Path, **options: Any) -> Path:
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=X, **options)
        file.create_dataset("y", data=Y, **options)
    return path


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"chunks": True},
        {"chunks": True, "compression": "gzip", "shuffle": True},
        {"compression": "lzf"},
        hdf5plugin.Blosc(cname="lz4"),
        hdf5plugin.Zstd(),
    ],
    ids=["contiguous", "chunked", "gzip", "lzf", "blosc", "zstd"],
)
def test_labels_and_samples_are_read_however_they_are_stored(tmp_path: Path, options: Any):
    dataset = read_hdf5(write(tmp_path / "a.h5", **options))
    assert str(dataset.schema()) == "x: float32[3, 2], y: int64"
    batch = dataset.to_numpy()
    assert (batch["x"] == X).all()
    assert (batch["y"] == Y).all()
    shuffled = [
        b
        for part in range(3)
        for b in dataset.shard(rank=part, world_size=3).iter_batches(shuffle=True, batch_size=64)
    ]
    rows = np.concatenate([b["y"] for b in shuffled])
    assert sorted(rows) == list(range(1000))
    assert (np.concatenate([b["x"] for b in shuffled]) == X[rows]).all()


def test_hdf5plugin_is_not_needed_for_what_hdf5_can_read(tmp_path: Path):
    write(tmp_path / "plain.h5", compression="gzip")
    write(tmp_path / "plugged.h5", **hdf5plugin.Blosc())
    assert not read_hdf5(tmp_path / "plain.h5").source.needs_plugin  # type: ignore[attr-defined]
    assert read_hdf5(tmp_path / "plugged.h5").source.needs_plugin  # type: ignore[attr-defined]


def test_groups_and_places_are_chosen(tmp_path: Path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["train/x"] = X
        file["train/labels/y"] = Y
        file["train/version"] = 3
    assert read_hdf5(tmp_path / "a.h5", group="train").columns() == ["x"]
    chosen = read_hdf5(tmp_path / "a.h5", datasets={"a": "train/x", "b": "/train/labels/y"})
    assert chosen.take(2)[1]["b"] == 1
    for wrong, message in (
        ({"group": "test"}, r"has no group 'test'. It has 'train', 'train/labels'"),
        ({}, r"group '/' has no dataset with rows. The file has 'train', .*choose with group="),
        (
            {"group": "train", "columns": ["z"]},
            r"a.h5: there is no column 'z'. The dataset has 'x'",
        ),
        ({"datasets": {"a": "nothing"}}, r"has no dataset 'nothing'. It has 'train'"),
        ({"datasets": {"a": "train/version"}}, r"'train/version' is a single value"),
        ({"datasets": {"a": "x"}, "columns": ["a"]}, r"Give datasets= alone: it names the columns"),
    ):
        with pytest.raises(ConfigError, match=message):
            read_hdf5(tmp_path / "a.h5", **wrong)


def test_a_virtual_dataset_is_read_and_one_that_lacks_a_file_is_refused(tmp_path: Path):
    for part in range(2):
        write(tmp_path / f"part{part}.h5")
    layout = h5py.VirtualLayout((2000,), "i8")
    for part in range(2):
        source = h5py.VirtualSource(f"part{part}.h5", "y", (1000,))
        layout[part * 1000 : (part + 1) * 1000] = source
    with h5py.File(tmp_path / "all.h5", "w") as file:
        file.create_virtual_dataset("y", layout)
    dataset = read_hdf5(tmp_path / "all.h5")
    assert dataset.to_numpy()["y"].tolist() == [*range(1000), *range(1000)]
    (tmp_path / "part1.h5").unlink()
    with pytest.raises(ConfigError, match=r"takes rows from part1.h5, which does not exist"):
        read_hdf5(tmp_path / "all.h5")


def test_strings_are_strings(tmp_path: Path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["s"] = ["ab", "c", "é"]
    assert read_hdf5(tmp_path / "a.h5").to_numpy()["s"].tolist() == ["ab", "c", "é"]


def test_rows_of_unlike_length_are_refused(tmp_path: Path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("tracks", (3,), h5py.vlen_dtype("f4"))
    with pytest.raises(
        ConfigError, match=r"dataset '/tracks' are references, or arrays of different lengths"
    ):
        read_hdf5(tmp_path / "a.h5")


def test_a_truncated_file_is_refused_when_the_dataset_is_made(tmp_path: Path):
    path = write(tmp_path / "a.h5")
    with path.open("r+b") as file:
        file.truncate(10_000)
    with pytest.raises(
        ConfigError, match=r"a.h5 \(10000 bytes\) cannot be read as HDF5: .*It is truncated"
    ):
        read_hdf5(path)
    (tmp_path / "b.h5").write_text("no HDF5")
    with pytest.raises(ConfigError, match=r"b.h5 \(7 bytes\) cannot be read as HDF5"):
        read_hdf5(tmp_path / "b.h5")


def test_files_with_unlike_columns_are_refused(tmp_path: Path):
    write(tmp_path / "a.h5")
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["x"] = X.astype("f8")
        file["z"] = Y
    message = (
        r"in .*a.h5 and .*b.h5 'x' is float32\[3, 2\] and float64\[3, 2\]; "
        r"'y' is int64 and missing; 'z' is missing and int64"
    )
    with pytest.raises(ConfigError, match=message):
        read_hdf5(tmp_path)


def test_datasets_of_unlike_length_are_refused(tmp_path: Path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = X
        file["y"] = Y[:5]
    with pytest.raises(ConfigError, match=r"different numbers of rows: '/?x' 1000, '/?y' 5"):
        read_hdf5(tmp_path / "a.h5")


def test_files_are_found_by_name_directory_and_pattern(tmp_path: Path):
    (tmp_path / "below").mkdir()
    for name in ("b.h5", "a.h5", "below/c.h5", "_hidden.h5"):
        write(tmp_path / name)
    (tmp_path / "notes.md").write_text("")
    assert read_hdf5(tmp_path).num_rows == 3000
    assert read_hdf5(tmp_path / "*.h5").num_rows == 3000
    assert read_hdf5([tmp_path / "a.h5", str(tmp_path / "b.h5")]).num_rows == 2000
    (tmp_path / "empty").mkdir()
    for nothing, message in (
        ("no.h5", "does not exist"),
        ("*.nc", "matches no file"),
        ("empty", "has no file that ends with .h5"),
    ):
        with pytest.raises(ConfigError, match=message):
            read_hdf5(tmp_path / nothing)


def test_parts_come_in_the_order_of_their_numbers(tmp_path: Path):
    for number in (0, 1, 2, 10):
        with h5py.File(tmp_path / f"part.{number}.h5", "w") as file:
            file["y"] = [number]
    for paths in (tmp_path, tmp_path / "part.*.h5"):
        assert read_hdf5(paths).to_numpy()["y"].tolist() == [0, 1, 2, 10]


def test_a_file_without_rows_is_left_out(tmp_path: Path):
    write(tmp_path / "a.h5")
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["x"], file["y"] = X[:0], Y[:0]
    assert read_hdf5(tmp_path).num_rows == 1000
    empty = read_hdf5(tmp_path / "b.h5")
    assert (empty.num_rows, empty.to_numpy()["x"].shape) == (0, (0, 3, 2))


def test_rows_behind_a_link_to_another_file_are_those_of_that_file(tmp_path: Path):
    folder = tmp_path / "other"
    folder.mkdir()
    numbers = np.arange(20)
    with h5py.File(folder / "b.h5", "w") as other:
        other["x"] = numbers + 100
        other.create_dataset("y", data=numbers + 200, chunks=(6,), compression="gzip")
        other["deep/z"] = numbers + 300
        layout = h5py.VirtualLayout(shape=(20,), dtype=int)
        layout[:] = h5py.VirtualSource(".", "x", shape=(20,))
        other.create_virtual_dataset("v", layout)
    with h5py.File(tmp_path / "a.h5", "w", userblock_size=512) as file:
        # The file has datasets of the same names.
        file["x"], file["y"], file["v"], file["deep/z"] = numbers, numbers, numbers, numbers
        for name in ("x", "y", "v", "deep/z"):
            file[f"linked/{Path(name).name}"] = h5py.ExternalLink("other/b.h5", f"/{name}")
        file["linked/soft"] = h5py.SoftLink("/x")
        file["linked/nowhere"] = h5py.SoftLink("/nothing")
        file["linked/gone"] = h5py.ExternalLink("other/c.h5", "/x")
        file["group"] = h5py.ExternalLink("other/b.h5", "/deep")
    dataset = read_hdf5(tmp_path / "a.h5", group="linked")
    with h5py.File(tmp_path / "a.h5") as file:
        expected = {name: file["linked"][name][:].tolist() for name in ("soft", "v", "x", "y", "z")}
    assert {name: rows.tolist() for name, rows in dataset.to_numpy().items()} == expected
    assert expected["x"][0] == 100
    places = {"a": "linked/x", "b": "x", "c": "/group/z"}
    some = read_hdf5(tmp_path / "a.h5", datasets=places).to_numpy()
    assert [some[name][1] for name in "abc"] == [101, 1, 301]
    assert read_hdf5(tmp_path / "a.h5", group="group").to_numpy()["z"][2] == 302
    batches = list(dataset.shard(rank=1, world_size=2).iter_batches(batch_size=3, shuffle=True))
    rows = np.concatenate([batch["x"] - batch["soft"] for batch in batches])
    assert rows.tolist() == [100] * 10
    with h5py.File(folder / "b.h5", "r+") as other:
        other["x"][...] = 7
    assert set(dataset.to_numpy()["x"]) == set(dataset.to_numpy()["v"]) == {7}


def test_elements_that_are_arrays_are_further_axes(tmp_path: Path):
    values = np.arange(24, dtype="f4").reshape(4, 2, 3)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", (4, 2), np.dtype(("f4", (3,))))[...] = values
        file["y"] = np.arange(4)
    dataset = read_hdf5(tmp_path / "a.h5")
    assert str(dataset.schema()) == "x: float32[2, 3], y: int64"
    assert dataset.to_numpy()["x"].tolist() == values.tolist()
    for batch in dataset.shard(rank=0, world_size=1).iter_batches(batch_size=3, shuffle=True):
        assert batch["x"].tolist() == values[batch["y"]].tolist()
