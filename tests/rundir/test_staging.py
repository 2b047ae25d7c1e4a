from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from hpctrain.checkpoint_files import MANIFEST_NAME
from hpctrain.errors import CheckpointError
from hpctrain.rundir.bulk import BULK
from hpctrain.rundir.shared_staging import SharedStaging
from hpctrain.rundir.staging import seal, staging_directory


def test_the_part_of_a_rank_lies_beside_the_target_and_names_attempt_report_and_rank():
    directory = staging_directory(Path("/run/checkpoints"), attempt=2, report=13, rank=5)
    assert directory == Path("/run/checkpoints/.tmp-2-000013/rank-00005")


def test_an_empty_directory_is_an_empty_part(tmp_path: Path):
    (tmp_path / "empty" / "folder").mkdir(parents=True)
    assert seal(tmp_path / "empty") == []


def test_sealing_lists_every_file_with_size_and_digest(tmp_path: Path):
    (tmp_path / "b").write_bytes(b"12345")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "c").write_bytes(b"")
    first, second = seal(tmp_path)
    assert (first.path, first.size) == ("a/c", 0)
    assert (second.path, second.size) == ("b", 5)
    assert BULK.digest(tmp_path / "b") == (5, second.digest)
    # xxh3_128 of nothing, from the specification's test vectors.
    assert first.digest == "99aa06d3014798d86001c324468d497f"


def test_copying_leaves_the_source_as_it_was(tmp_path: Path):
    source, target = tmp_path / "source", tmp_path / "commit/all"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "model.bin").write_bytes(b"weights")
    (source / MANIFEST_NAME).write_text("of an earlier commit")
    before = (source / "sub" / "model.bin").stat()
    staging = SharedStaging(target, tmp_path / "own")
    staging.copy(source)
    assert staging.shared == {"sub/model.bin"}
    assert (target / "sub" / "model.bin").read_bytes() == b"weights"
    assert not (target / MANIFEST_NAME).exists()
    (target / "sub" / "model.bin").write_bytes(b"changed")
    after = (source / "sub" / "model.bin").stat()
    assert (source / "sub" / "model.bin").read_bytes() == b"weights"
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_what_cannot_be_listed_is_an_error_and_not_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "sub").mkdir()
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "sub" / "b.txt").write_text("b")
    scandir = os.scandir

    def fail(path: str) -> Any:
        if str(path).endswith("sub"):
            raise OSError(errno.EIO, "Input/output error")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", fail)
    with pytest.raises(OSError, match="Input/output error"):
        seal(tmp_path)


def test_a_link_to_a_directory_is_refused_and_not_left_out(tmp_path: Path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "b.txt").write_text("b")
    part = tmp_path / "part"
    part.mkdir()
    (part / "a.txt").write_text("a")
    (part / "model").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match=f"{part / 'model'} is a link to a directory"):
        seal(part)
