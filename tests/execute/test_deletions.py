from __future__ import annotations

import threading
from pathlib import Path

import pytest

from hpctrain.execute.deletions import Deletions
from hpctrain.timeouts import set_by
from tests.execute.conftest import SlowDisk
from tests.waiting import wait_until


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


def test_where_deletions_are_slower_than_saves_the_oldest_is_waited_for(
    tmp_path: Path, disk: SlowDisk
):
    directories = [tmp_path / f".trash-{number}" for number in range(9)]
    for directory in directories:
        directory.mkdir()
    deletions = Deletions()
    retaining = threading.Thread(target=lambda: [*map(deletions.begin, directories)])
    retaining.start()
    wait_until(lambda: len(disk.asked) >= 4)
    retaining.join(0.2)
    assert retaining.is_alive()
    assert deletions.is_at_work
    assert disk.asked == directories[:4]
    disk.lets.set()
    retaining.join(60)
    deletions.finish()
    assert not any(directory.exists() for directory in directories)
    assert not deletions.is_at_work


def test_a_disk_that_deletes_nothing_holds_nobody_for_long_and_what_is_left_is_deleted_later(
    tmp_path: Path, disk: SlowDisk, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("hpctrain.timeouts.DELETION_ROOM_S", 0.01)
    directories = [tmp_path / f".trash-{number}" for number in range(7)]
    for directory in directories:
        directory.mkdir()
    deletions = Deletions()
    for directory in directories:
        deletions.begin(directory)
        deletions.begin(directory)
    assert deletions.is_at_work
    disk.lets.set()
    deletions.finish()
    assert sorted(disk.asked) == directories
    assert not any(directory.exists() for directory in directories)
    assert not deletions.is_at_work


def test_a_disk_that_does_not_answer_does_not_keep_a_run_from_its_end(
    directory: Path,
    disk: SlowDisk,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.setattr("hpctrain.timeouts.DELETIONS_S", set_by("a test", 0.01))
    deletions = Deletions()
    deletions.begin(directory)
    deletions.finish()
    assert deletions.is_at_work
    assert f"{directory} is not deleted after 0.01 s (a test)" in capsys.readouterr().err


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
