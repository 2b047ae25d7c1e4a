"""A checkpoint of one run in the place of one of another run."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from hpctrain.checkpoint_lock import hold_for_deletion
from hpctrain.errors import CheckpointError
from hpctrain.log import log_once
from hpctrain.rundir import clone as module
from hpctrain.rundir.bulk import clone as reflink
from hpctrain.rundir.clone import clone_checkpoint
from hpctrain.rundir.shared_staging import SharedStaging
from hpctrain.rundir.staging import StagedPart, seal, staging_directory
from hpctrain.rundir.store import CheckpointStore
from hpctrain.writers import COPIED_NAME, hold_tree

FILES = {"model.bin": b"the best", "deep/er/state.bin": b"\0" * 5000}


def commit(checkpoints: Path, report: int, files: Mapping[str, bytes], *, name: str = "") -> Path:
    staging = staging_directory(checkpoints, attempt=1, report=report, rank=0)
    for path, content in files.items():
        (staging / path).parent.mkdir(parents=True, exist_ok=True)
        (staging / path).write_bytes(content)
        # Whatever the umask is.
        (staging / path).chmod(0o644)
    part = StagedPart(files=tuple(seal(staging)), name=name or None, versions={"torch": "3.1"})
    made, _ = CheckpointStore(checkpoints).commit(
        attempt=1, report=report, world_size=2, metrics={"loss": report}, parts={0: part}
    )
    return made.path


def is_shared(clone: Path, source: Path) -> bool:
    """Return whether a clone has cost no copy."""
    with tempfile.TemporaryDirectory(dir=source.parent) as place:
        has_reflinks = reflink(source, Path(place, "reflink"))
    return has_reflinks or clone.samefile(source)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return commit(tmp_path / "donor", 7, FILES)


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    directory = tmp_path / "own"
    for report in (2, 3):
        commit(directory, report, {"model.bin": b"worse", "more": b"1"})
    return directory


def names(checkpoints: Path) -> list[str]:
    return sorted(os.listdir(checkpoints))


def test_it_takes_the_place_of_a_report_and_the_others_stay(
    source: Path, checkpoints: Path
) -> None:
    manifest = clone_checkpoint(source, checkpoints, report=3, attempt=4)
    assert names(checkpoints) == ["000002", "000003"]
    store = CheckpointStore(checkpoints)
    assert store.newest_good() == (manifest, []), "each file is what the manifest says"
    assert (manifest.report, manifest.attempt, manifest.world_size) == (3, 4, 2)
    assert manifest.metrics == {"loss": 7}
    assert manifest.versions == {"torch": "3.1"}
    for path, content in FILES.items():
        assert (checkpoints / "000003" / path).read_bytes() == content
    assert not (checkpoints / "000003/more").exists()


def test_nothing_is_copied_where_files_can_have_two_names(
    source: Path, checkpoints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copy(self: SharedStaging, source: Path) -> None:
        raise AssertionError("copied")

    monkeypatch.setattr(SharedStaging, "copy", copy)
    clone_checkpoint(source, checkpoints, report=3, attempt=1)
    assert is_shared(checkpoints / "000003/model.bin", source / "model.bin")
    shutil.rmtree(source)
    assert (checkpoints / "000003/model.bin").read_bytes() == b"the best"


def test_it_is_copied_where_they_cannot_which_is_said_once(
    source: Path,
    checkpoints: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    log_once.cache_clear()

    def link(self: SharedStaging, source: Path) -> None:
        self.add("model.bin", lambda path: path.write_bytes(b"half"))
        raise CheckpointError("cannot be linked") from OSError(1, "Operation not permitted")

    monkeypatch.setattr(SharedStaging, "link", link)
    clone_checkpoint(source, checkpoints, report=3, attempt=1)
    assert CheckpointStore(checkpoints).newest_good()[1] == []
    clone_checkpoint(source, checkpoints, report=4, attempt=1)
    said = "checkpoints are copied, since their files cannot be linked: Operation not permitted"
    assert capsys.readouterr().err == f"hpctrain: {said}\n"
    clone = checkpoints / "000003/model.bin"
    assert clone.read_bytes() == b"the best"
    assert not clone.samefile(source / "model.bin")


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_file_that_its_group_could_write_is_closed_and_has_a_second_name(
    source: Path, checkpoints: Path
) -> None:
    """As a umask of 002 makes it, in a directory that only this user can enter."""
    source.parent.chmod(0o700)
    (source / "model.bin").chmod(0o664)
    clone_checkpoint(source, checkpoints, report=3, attempt=1)
    clone = checkpoints / "000003/model.bin"
    assert is_shared(clone, source / "model.bin")
    assert mode_of(source / "model.bin") == mode_of(clone) == 0o644
    assert not (clone.parent / COPIED_NAME).exists()


def test_it_is_copied_where_a_file_cannot_be_closed(
    source: Path, checkpoints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.parent.chmod(0o700)
    (source / "model.bin").chmod(0o664)

    def chmod(self: Path, mode: int, **options: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "chmod", chmod)
        clone_checkpoint(source, checkpoints, report=3, attempt=1)
    clone = checkpoints / "000003/model.bin"
    assert clone.read_bytes() == b"the best"
    assert not clone.samefile(source / "model.bin")


def test_a_file_that_others_may_have_written_needs_trust_under_both_names() -> None:
    # Anybody can enter it, other than pytest's own.
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        place.chmod(0o755)
        source = commit(place / "donor", 7, FILES)
        (source / "model.bin").chmod(0o664)
        clone_checkpoint(source, place / "own", report=3, attempt=1)
        clone = place / "own/000003/model.bin"
        assert is_shared(clone, source / "model.bin")
        assert mode_of(source / "model.bin") == 0o664
        for path in (source, clone.parent):
            with hold_tree(path) as tree:
                assert tree.judge() is not None
        assert (clone.parent / COPIED_NAME).exists()


def test_a_report_without_a_checkpoint_gets_one_and_one_with_a_name_keeps_it(
    source: Path, checkpoints: Path
) -> None:
    assert clone_checkpoint(source, checkpoints, report=5, attempt=1).name == "000005"
    commit(checkpoints, 6, {"model.bin": b"own"}, name="epoch-6")
    assert clone_checkpoint(source, checkpoints, report=6, attempt=1).name == "epoch-6"
    assert names(checkpoints) == ["000002", "000003", "000005", "epoch-6"]


def test_it_is_done_again_whatever_was_left_of_the_first_time(
    source: Path, checkpoints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class DiedError(Exception):
        pass

    def die(self: CheckpointStore, **options: object) -> None:
        raise DiedError

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointStore, "commit", die)
        with pytest.raises(DiedError):
            clone_checkpoint(source, checkpoints, report=3, attempt=1)
    assert (checkpoints / "000003/model.bin").read_bytes() == b"worse", "it is there until then"
    for _ in range(2):
        clone_checkpoint(source, checkpoints, report=3, attempt=1)
        assert names(checkpoints) == ["000002", "000003"]
        assert (checkpoints / "000003/model.bin").read_bytes() == b"the best"


def test_what_is_cloned_is_not_deleted_meanwhile(
    source: Path, checkpoints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    stage = module._stage

    def look(source: Path, checkpoints: Path, **options: int) -> SharedStaging:
        with hold_for_deletion(source) as is_unread:
            seen.append(is_unread)
        return stage(source, checkpoints, **options)

    monkeypatch.setattr(module, "_stage", look)
    clone_checkpoint(source, checkpoints, report=3, attempt=1)
    assert seen == [False]


@pytest.mark.parametrize("damage", ["deleted", "no manifest", "no directory of checkpoints"])
def test_what_is_no_checkpoint_is_refused_and_nothing_is_lost(
    damage: str, source: Path, checkpoints: Path
) -> None:
    if damage == "no manifest":
        (source / ".hpctrain-manifest.json").unlink()
    else:
        shutil.rmtree(source if damage == "deleted" else source.parent)
    with pytest.raises(CheckpointError, match=str(source)):
        clone_checkpoint(source, checkpoints, report=3, attempt=1)
    assert (checkpoints / "000003/model.bin").read_bytes() == b"worse"


def test_what_has_lost_a_file_is_refused_and_its_clone_is_not_taken_for_whole(
    source: Path, checkpoints: Path
) -> None:
    (source / "deep/er/state.bin").unlink()
    message = f"checkpoint 000007 has lost {source}/deep/er/state.bin"
    with pytest.raises(CheckpointError, match=message):
        clone_checkpoint(source, checkpoints, report=3, attempt=1)
    assert names(checkpoints) == ["000002", "000003"]
    assert (checkpoints / "000003/model.bin").read_bytes() == b"worse"
