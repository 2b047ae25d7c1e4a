from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from hpctrain.checkpoint_files import MANIFEST_NAME, OF_THE_RUN
from hpctrain.errors import CheckpointError
from hpctrain.rundir.bulk import BULK
from hpctrain.rundir.shared_staging import SharedStaging
from hpctrain.rundir.staging import StagedPart, seal, staging_directory
from hpctrain.rundir.store import CheckpointStore
from hpctrain.writers import COPIED_NAME


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


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    store = CheckpointStore(tmp_path / "checkpoints")
    store.prepare()
    return store


def own_directory(tmp_path: Path, report: int) -> Path:
    own = staging_directory(tmp_path / "checkpoints", attempt=1, report=report, rank=0)
    own.mkdir(parents=True)
    return own


def commit(store: CheckpointStore, own: Path, report: int) -> Path:
    part = StagedPart(files=tuple(seal(own)))
    made, _ = store.commit(attempt=1, report=report, world_size=1, metrics={}, parts={0: part})
    return made.path


def test_a_checkpoint_that_carries_on_the_last_one_leaves_out_what_belongs_to_the_run(
    tmp_path: Path, store: CheckpointStore
):
    for report in (1, 2):
        own = own_directory(tmp_path, report)
        if report == 2:
            shutil.copytree(store.open(store.manifests()[0]).path, own, dirs_exist_ok=True)
            (own / OF_THE_RUN[1]).write_text("what its validation found")
        (own / "model.bin").write_text(str(report))
        made = commit(store, own, report)
    assert [file.path for file in store.manifests()[-1].files] == ["model.bin"]
    assert sorted(os.listdir(made)) == [MANIFEST_NAME, "model.bin"]
    assert store.newest_good() == (store.manifests()[-1], [])


@pytest.mark.parametrize("is_relative", [True, False])
def test_a_link_to_a_file_becomes_a_copy(tmp_path: Path, store: CheckpointStore, is_relative: bool):
    own = own_directory(tmp_path, 1)
    (own / "step-5").write_bytes(b"weights")
    (own / "latest").symlink_to("step-5" if is_relative else own / "step-5")
    (own / "best").symlink_to("latest")
    outside = tmp_path / "tokenizer.json"
    outside.write_bytes(b"{}")
    (own / ("n" * 255)).symlink_to(outside)
    made = commit(store, own, 1)
    outside.write_bytes(b"another")
    assert not any(path.is_symlink() for path in made.iterdir())
    assert (made / "best").read_bytes() == (made / "latest").read_bytes() == b"weights"
    assert (made / ("n" * 255)).read_bytes() == b"{}"
    assert outside.read_bytes() == b"another"
    assert store.newest_good() == (store.manifests()[0], [])
    assert not (made / COPIED_NAME).exists()


def test_a_copy_of_a_linked_file_that_others_can_write_is_marked(
    tmp_path: Path, store: CheckpointStore
):
    own = own_directory(tmp_path, 1)
    (own / "sub").mkdir()
    outside = tmp_path / "outside.pkl"
    outside.write_bytes(b"a pickle")
    outside.chmod(0o666)
    (own / "sub/linked.pkl").symlink_to(outside)
    made = commit(store, own, 1)
    assert (made / COPIED_NAME).is_file()
    assert [f.path for f in store.manifests()[0].files] == [COPIED_NAME, "sub/linked.pkl"]


def test_a_link_to_nothing_is_refused_by_name(tmp_path: Path):
    (tmp_path / "latest").symlink_to("step-5")
    message = f"{tmp_path / 'latest'} is a link to step-5, which cannot be read: No such file"
    with pytest.raises(CheckpointError, match=message):
        seal(tmp_path)


def test_what_an_nfs_client_keeps_of_a_deleted_open_file_is_in_no_checkpoint(tmp_path: Path):
    (tmp_path / f".nfs{17:024x}").write_text("deleted, but open")
    (tmp_path / ".nfs-notes").write_text("a file of the user")
    assert [file.path for file in seal(tmp_path)] == [".nfs-notes"]
