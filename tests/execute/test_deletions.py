from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpctrain.execute.deletions import Deletions


class SlowDisk:
    """Deletes nothing before it is let."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lets = threading.Event()
        self.asked: list[Path] = []
        rmtree = shutil.rmtree

        def delete(path: Path, **options: Any) -> None:
            self.asked.append(path)
            assert self.lets.wait(60)
            rmtree(path, **options)

        monkeypatch.setattr(shutil, "rmtree", delete)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowDisk]:
    disk = SlowDisk(monkeypatch)
    yield disk
    disk.lets.set()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    directory = tmp_path / ".trash-000001-1"
    directory.mkdir()
    (directory / "model.bin").write_bytes(b"1")
    return directory


def test_who_begins_a_deletion_does_not_wait_for_it_and_may_begin_it_again(
    directory: Path, disk: SlowDisk
):
    deletions = Deletions()
    for _ in range(3):
        deletions.begin(directory)
    assert directory.exists()
    disk.lets.set()
    deletions.finish()
    assert not directory.exists()
    assert disk.asked == [directory]


def test_where_there_are_no_more_threads_a_directory_is_deleted_all_the_same(
    directory: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    deletions = Deletions()
    deletions.begin(directory)
    assert not directory.exists()
    deletions.finish()


def test_what_is_gone_already_or_cannot_be_deleted_is_no_error(tmp_path: Path):
    deletions = Deletions()
    deletions.begin(tmp_path / "gone")
    (tmp_path / "file").touch()
    deletions.begin(tmp_path / "file")
    deletions.finish()
    assert (tmp_path / "file").exists()
