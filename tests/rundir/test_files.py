from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from hpctrain.errors import DamagedFileError
from hpctrain.own_files import name_beside
from hpctrain.rundir import files
from hpctrain.rundir.files import (
    exchange_directory,
    open_append,
    remove_unfinished,
    retry,
    write_atomic,
)


def test_a_file_is_replaced_as_a_whole_and_nothing_is_left_beside_it(tmp_path: Path):
    path = tmp_path / "status.json"
    write_atomic(path, b"old")
    write_atomic(path, b"new", durable=True)
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["status.json"]


def test_what_a_killed_process_left_beside_a_file_is_removed_and_nothing_else(tmp_path: Path):
    plan = tmp_path / "plan.json"
    write_atomic(plan, b"{}")
    name_beside(plan).write_bytes(b"{")
    kept = [".plan.json.bak", ".plan.json.0123", ".other.json.0123456789abcdef", "plan.json"]
    for name in kept[:-1]:
        (tmp_path / name).touch()
    remove_unfinished(plan, tmp_path / "status.json")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kept)


def test_a_failed_write_keeps_the_old_content_and_leaves_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def full_disk(_: int) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "status.json"
    write_atomic(path, b"old")
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        write_atomic(path, b"new", durable=True)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["status.json"]


def test_a_directory_gets_its_name_back_if_another_one_cannot_take_its_place(tmp_path: Path):
    old, aside = tmp_path / "000001", tmp_path / "000001.replaced"
    (old / "part").mkdir(parents=True)
    with pytest.raises(FileNotFoundError):
        exchange_directory(tmp_path / "absent", old, aside=aside)
    assert (old / "part").is_dir()
    (tmp_path / "new").mkdir()
    exchange_directory(tmp_path / "new", old, aside=aside)
    assert not list(old.iterdir())
    assert (aside / "part").is_dir()


@pytest.mark.parametrize("name", ["missing/file", "directory"])
def test_an_error_names_the_file_and_not_the_hidden_one_beside_it(tmp_path: Path, name: str):
    (tmp_path / "directory").mkdir()
    with pytest.raises(OSError, match=rf"\] [A-Z][a-z ]+: '{tmp_path / name}'$"):
        write_atomic(tmp_path / name, b"content")


def test_a_secret_file_is_never_readable_by_others(tmp_path: Path):
    path = tmp_path / "spec.pkl"
    write_atomic(path, b"code", mode=0o600)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_torn_last_line_does_not_swallow_what_is_appended_after_it(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"report":1}\n{"repo')
    descriptor = open_append(path)
    os.write(descriptor, b'{"report":2}\n')
    os.close(descriptor)
    assert path.read_bytes() == b'{"report":1}\n{"repo\n{"report":2}\n'


def test_nothing_is_appended_to_what_a_link_leads_to(tmp_path: Path):
    (tmp_path / "other").write_bytes(b"")
    (tmp_path / "ledger.jsonl").symlink_to(tmp_path / "other")
    with pytest.raises(DamagedFileError, match="symbolic link"):
        open_append(tmp_path / "ledger.jsonl")


def test_nothing_is_appended_to_what_is_no_file(tmp_path: Path):
    (tmp_path / "a directory").mkdir()
    with pytest.raises(DamagedFileError, match="it is a directory"):
        open_append(tmp_path / "a directory")
    os.mkfifo(tmp_path / "a FIFO")
    with pytest.raises(DamagedFileError, match="it is not a regular file"):
        open_append(tmp_path / "a FIFO")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE])
def test_what_may_pass_is_tried_again(monkeypatch: pytest.MonkeyPatch, number: int):
    monkeypatch.setattr(files, "_PAUSE_S", 0.0)
    left = [OSError(number, os.strerror(number))] * 2

    def write() -> str:
        if left:
            raise left.pop()
        return "written"

    assert retry(write, patience_s=60.0) == "written"


@pytest.mark.parametrize(("number", "patience_s"), [(errno.ENOENT, 60.0), (errno.ENOSPC, 0.0)])
def test_what_does_not_pass_is_raised(number: int, patience_s: float):
    def write() -> None:
        raise OSError(number, os.strerror(number))

    with pytest.raises(OSError, match=os.strerror(number)):
        retry(write, patience_s=patience_s)
