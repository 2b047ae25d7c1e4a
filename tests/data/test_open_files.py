from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpctrain import ConfigError
from hpctrain.data import read_hdf5
from hpctrain.data.open_files import OpenFiles, kept_open


class File:
    def __init__(self, path: str) -> None:
        self.content = Path(path).read_text()
        self.is_open = True

    def close(self) -> None:
        self.is_open = False


@pytest.fixture
def files() -> OpenFiles:
    return OpenFiles(File, at_most=2)


@pytest.fixture
def make(tmp_path: Path) -> Callable[[str], str]:
    def make(name: str) -> str:
        (tmp_path / name).write_text(name)
        return str(tmp_path / name)

    return make


def use(files: OpenFiles, path: str) -> File:
    with files.use(path) as file:
        assert file.is_open
        return file


def test_a_file_stays_open_until_an_epoch_ends(files: OpenFiles, make: Callable[[str], str]):
    path = make("a")
    with kept_open():
        with kept_open():
            first = use(files, path)
            assert use(files, path) is first
        # An epoch that is left in the middle keeps no file from being written to.
        assert not first.is_open
        second = use(files, path)
        assert second is not first
        assert second.is_open
    assert not second.is_open
    assert not use(files, path).is_open


def test_a_file_is_used_by_one_at_a_time(files: OpenFiles, make: Callable[[str], str]):
    path = make("a")
    with kept_open(), files.use(path) as one, files.use(path) as other:
        assert one is not other


def test_the_least_recently_used_file_is_closed_when_there_are_many(
    files: OpenFiles, make: Callable[[str], str]
):
    paths = list(map(make, "abc"))
    with kept_open():
        a, b = (use(files, path) for path in paths[:2])
        assert use(files, paths[0]) is a
        use(files, paths[2])
        assert (a.is_open, b.is_open) == (True, False)


def test_a_file_that_changed_is_opened_again_and_the_old_one_closed_before(
    files: OpenFiles, make: Callable[[str], str]
):
    path = make("a")
    with kept_open():
        first = use(files, path)
        Path(path).write_text("other")
        assert use(files, path).content == "other"
        assert not first.is_open
        os.replace(make("b"), path)
        assert use(files, path).content == "b"


def test_a_file_that_could_not_be_read_is_closed(files: OpenFiles, make: Callable[[str], str]):
    with kept_open():
        with pytest.raises(OSError, match="damaged"), files.use(make("a")) as file:
            raise OSError("damaged")
        assert not file.is_open


def test_a_child_opens_files_of_its_own_and_leaves_those_of_its_parent(
    files: OpenFiles, make: Callable[[str], str]
):
    path = make("a")
    epoch = kept_open()
    with epoch:
        first = use(files, path)
        child = os.fork()
        if child == 0:
            own = use(files, path)
            # Closed at once: no epoch began in the child.
            os._exit(0 if own is not first and first.is_open and not own.is_open else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert use(files, path) is first


def test_a_virtual_dataset_whose_files_are_gone_is_not_read_as_zeros(tmp_path: Path):
    with h5py.File(tmp_path / "source.h5", "w") as file:
        file["x"] = np.arange(1, 4)
    with h5py.File(tmp_path / "virtual.h5", "w") as file:
        layout = h5py.VirtualLayout((3,), "i8")
        layout[:] = h5py.VirtualSource("source.h5", "x", shape=(3,))
        file.create_virtual_dataset("x", layout)
    dataset = read_hdf5(tmp_path / "virtual.h5")
    assert dataset.to_numpy()["x"].tolist() == [1, 2, 3]
    (tmp_path / "source.h5").unlink()
    with pytest.raises(ConfigError, match=r"takes rows from source\.h5, which does not exist"):
        dataset.to_numpy()
