"""HDF5 opens a file again only where it may have changed."""

import os

import h5py
import numpy as np
import pytest

from hpctrain.data import known_layouts
from hpctrain.data.hdf5_reader import Hdf5Reader
from hpctrain.data.open_files import OpenFiles

N = 1000
X = np.arange(3 * N, dtype="f4").reshape(N, 3)


class Counted:
    """Readers, and how often HDF5 opened a file for one."""

    def __init__(self):
        self.num_opened = 0

    def _open(self, path):
        self.num_opened += 1
        return h5py.File(path, "r")

    def read(self, path, *names):
        reader = Hdf5Reader(str(path), self._open, OpenFiles(lambda _: self))
        rows = []
        for name in names:
            out = np.empty((N, 3), "f4")
            reader.read_into(name, range(N), out)
            rows.append(out)
        reader.close()
        return rows


@pytest.fixture
def counted():
    return Counted()


@pytest.fixture
def settled(monkeypatch):
    """Take every file for one that was written long ago."""
    monkeypatch.setattr(known_layouts, "_SETTLED_NS", 0)


@pytest.fixture
def path(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = X
        file.create_dataset("z", data=X, chunks=(64, 3), compression="gzip")
        file["other"] = h5py.SoftLink("/x")
    return tmp_path / "a.h5"


def test_a_file_is_opened_once_for_all_epochs(counted, path, settled):
    for _ in range(3):
        assert all(np.array_equal(rows, X) for rows in counted.read(path, "x", "z", "/x"))
    assert counted.num_opened == 1
    # Another dataset of it is not known yet.
    assert np.array_equal(counted.read(path, "x", "other")[1], X)
    assert counted.num_opened == 2


def test_a_file_that_changed_in_place_is_opened_again(counted, path, settled):
    counted.read(path, "x", "z")
    size = path.stat().st_size
    with h5py.File(path, "r+") as file:
        # The same names, in each other's place.
        file.move("x", "y")
        file.move("z", "x")
        file.move("y", "z")
        file["z"][...] = X + 1
    assert path.stat().st_size == size
    # Both writes may lie within one step of the filesystem's clock.
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 10**9))
    x, z = counted.read(path, "x", "z")
    assert np.array_equal(x, X)
    assert np.array_equal(z, X + 1)
    assert counted.num_opened == 2


def test_a_file_in_its_place_is_opened_again(counted, path, settled):
    counted.read(path, "x")
    path.unlink()
    with h5py.File(path, "w", userblock_size=4096) as file:
        file["x"] = X + 2
    assert np.array_equal(counted.read(path, "x")[0], X + 2)


def test_nothing_is_remembered_of_a_file_that_has_just_been_written(counted, path, monkeypatch):
    monkeypatch.setattr(known_layouts, "_SETTLED_NS", 3600 * 10**9)
    counted.read(path, "x")
    counted.read(path, "x")
    assert counted.num_opened == 2


def test_few_files_are_remembered(counted, tmp_path, settled, monkeypatch):
    monkeypatch.setattr(known_layouts, "_AT_MOST", 2)
    for name in "abc":
        with h5py.File(tmp_path / name, "w") as file:
            file["x"] = X
        counted.read(tmp_path / name, "x")
    for name in "cba":
        counted.read(tmp_path / name, "x")
    assert counted.num_opened == 4
