"""A checkpoint of one run in the place of one of another run."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from hpctrain.checkpoint_lock import hold_for_deletion
from hpctrain.errors import CheckpointError
from hpctrain.rundir import clone as module
from hpctrain.rundir.clone import clone_checkpoint
from hpctrain.rundir.shared_staging import SharedStaging
from hpctrain.rundir.staging import StagedPart, seal, staging_directory
from hpctrain.rundir.store import CheckpointStore

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
    shutil.rmtree(source)
    assert (checkpoints / "000003/model.bin").read_bytes() == b"the best"


def test_it_is_copied_where_they_cannot(
    source: Path, checkpoints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(self: SharedStaging, source: Path) -> None:
        self.add("model.bin", lambda path: path.write_bytes(b"half"))
        raise CheckpointError("cannot be linked")

    monkeypatch.setattr(SharedStaging, "link", link)
    clone_checkpoint(source, checkpoints, report=3, attempt=1)
    assert CheckpointStore(checkpoints).newest_good()[1] == []
    clone = checkpoints / "000003/model.bin"
    assert clone.read_bytes() == b"the best"
    assert not clone.samefile(source / "model.bin")


def test_a_file_that_others_can_write_is_copied(source: Path, checkpoints: Path) -> None:
    (source / "model.bin").chmod(0o664)
    clone_checkpoint(source, checkpoints, report=3, attempt=1)
    assert not (checkpoints / "000003/model.bin").samefile(source / "model.bin")


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
