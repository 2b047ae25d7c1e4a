"""Files that have changed are seen to have changed, and others are not."""

from __future__ import annotations

import os
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest

from hpctrain.data import (
    Dataset,
    from_numpy,
    identity,
    read_csv,
    read_hdf5,
    read_numpy,
    read_parquet,
)
from hpctrain.data.identity import files_below, files_of, identify_files


def test_every_file_of_a_dataset_counts(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": np.arange(4)})
    names = [str(tmp_path / name) for name in ("a.parquet", "b.parquet", "c.csv", "d.npy", "e.h5")]
    for name in names[:2]:
        frame.to_parquet(name)
    frame.to_csv(names[2])
    np.save(names[3], frame["x"])
    with h5py.File(names[4], "w") as file:
        file["x"] = frame["x"]
    assert files_of(read_parquet(names[:2]).random_shuffle().limit(3)) == names[:2]
    assert files_of(read_csv(names[2]).map_batches(lambda batch: batch)) == [names[2]]
    assert files_of(read_numpy({"x": names[3], "y": names[3]})) == [names[3]]
    assert files_of(read_hdf5(names[4])) == [names[4]]
    assert files_of(from_numpy({"x": np.arange(3)})) == []
    assert files_of(frame.assign(source=1, parts=2)) == []


def make_parts(folder: Path) -> Dataset:
    """Rows of a file, behind a virtual dataset of a virtual dataset; and of a file without form."""
    with h5py.File(folder / "inner.h5", "w") as file:
        file["x"] = np.arange(6)
    for name, other, dataset in (("middle", "inner", "x"), ("outer", "middle", "v")):
        layout = h5py.VirtualLayout((6,), dtype="i8")
        layout[:] = h5py.VirtualSource(f"{other}.h5", dataset, (6,))
        with h5py.File(folder / f"{name}.h5", "w") as file:
            file.create_virtual_dataset("v", layout)
            raw = [(str(folder / "rows.raw"), 0, h5py.h5f.UNLIMITED)]
            file.create_dataset("r", (6,), "i8", external=raw)[:] = 1
    return read_hdf5(folder / "outer.h5")


def test_so_do_those_that_a_file_of_hdf5_only_points_to(tmp_path: Path) -> None:
    dataset = make_parts(tmp_path)
    names = ("outer.h5", "middle.h5", "inner.h5", "rows.raw")
    assert set(files_of(dataset)) == {str(tmp_path / name) for name in names}
    before = identify_files(files_of(dataset))
    with h5py.File(tmp_path / "inner.h5", "r+") as file:
        file["x"][2] = 99
    assert identify_files(files_of(dataset)) != before


def write(path: Path, content: str, *, time_ns: int | None = None) -> str:
    path.write_text(content)
    if time_ns is not None:
        os.utime(path, ns=(time_ns, time_ns))
    return identify_files(files_below(path.parent))


def test_small_files_are_read_since_times_can_lie(tmp_path: Path) -> None:
    inside = tmp_path / "deep" / "er"
    inside.mkdir(parents=True)
    path = inside / "rows"
    first = write(path, "abc", time_ns=10**18 + 1)
    assert write(path, "abd", time_ns=10**18 + 1) != first
    assert write(path, "abc", time_ns=10**18 + 9) == first
    path.rename(inside / "columns")
    assert identify_files(files_below(tmp_path)) != first


@pytest.mark.parametrize("whole_seconds", [True, False])
def test_of_large_files_size_and_time_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole_seconds: bool
) -> None:
    monkeypatch.setattr(identity, "DIGEST_BYTES", 0)
    path, time_ns = tmp_path / "rows", 10**18 + (0 if whole_seconds else 1)
    first = write(path, "abc", time_ns=time_ns)
    assert identify_files([str(path)]) == first
    assert write(path, "abcd", time_ns=time_ns) != first
    assert write(path, "abc", time_ns=time_ns + 1) != first
    # Two archives that were unpacked with the same time.
    assert (write(path, "abd", time_ns=time_ns) == first) is not whole_seconds


def test_a_file_that_is_gone_is_a_change(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    first = write(path, "abc")
    assert identify_files([str(path)]) == first
    path.unlink()
    assert identify_files([str(path)]) != first
