from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from hpctrain.checkpoint import Checkpoint, CheckpointUploadMode
from hpctrain.errors import CheckpointError
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.staging import shared_directory, staging_directory
from hpctrain.worker.commits import Commits
from hpctrain.worker.part_writer import PartWriter
from hpctrain.worker.upload import Upload
from hpctrain.worker.writing import Writing
from tests.worlds import make_world


class Started:
    """A PartWriter, and what it writes to."""

    def __init__(self, tmp_path: Path, *, rank: int = 0, in_background: bool = False) -> None:
        self.paths = RunPaths(tmp_path / "run")
        self.paths.checkpoints.mkdir(parents=True)
        (tmp_path / "nvme").mkdir()
        self.commits = Commits(rank=rank, newest=(0, None), timeout_s=0.2)
        self.writer = PartWriter(
            make_world(rank, 2),
            self.paths,
            commits=self.commits,
            writing=Writing(rank=rank, timeout_s=1.0, ask=lambda *_: None),
            timeout_s=0.2,
            in_background=in_background,
        )

    def own(self, report: int, rank: int = 0) -> Path:
        return staging_directory(self.paths.checkpoints, attempt=1, report=report, rank=rank)

    @property
    def shared(self) -> Path:
        return shared_directory(self.paths.checkpoints, attempt=1, report=1)


@pytest.fixture
def started(tmp_path: Path) -> Started:
    return Started(tmp_path)


def upload_of(source: Path) -> Upload:
    return Upload(
        checkpoint=Checkpoint.from_directory(source),
        dir_name=None,
        mode=CheckpointUploadMode.SYNC,
        delete_local=False,
        upload_fn=None,
        validation=None,
    )


def make_source(tmp_path: Path) -> Path:
    source = tmp_path / "source"
    source.mkdir()
    (source / "model.bin").write_bytes(b"weights")
    return source


def test_a_part_holds_the_files_of_the_source_and_those_beside_it(started: Started, tmp_path: Path):
    started.writer.beside.append({"metadata.json": b"{}"})
    part = started.writer.stage(1, upload_of(make_source(tmp_path)))
    assert sorted(file.path for file in part.files) == ["metadata.json", "model.bin"]
    assert (started.shared / "model.bin").read_bytes() == b"weights"


def test_a_part_that_cannot_be_written_names_the_rank_and_the_reason(
    started: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Upload, "stage", refuse)
    with pytest.raises(CheckpointError, match=r"rank 0 .* report 3 .* No space left on device"):
        started.writer.stage(3, upload_of(make_source(tmp_path)))


def test_staging_is_empty_each_time(started: Started):
    directory = started.writer.staging(1)
    (directory / "left").touch()
    assert started.writer.staging(1) == directory == started.own(1)
    assert list(directory.iterdir()) == []


@pytest.mark.parametrize("is_made", [False, True])
def test_rank_0_makes_the_shared_directory_and_removes_it_without_a_report(
    started: Started, is_made: bool
):
    with started.writer.shared_staging(1, is_made=lambda: is_made) as directory:
        assert directory == started.shared
        assert directory.is_dir()
    assert started.shared.exists() is is_made


def test_another_rank_makes_no_shared_directory(tmp_path: Path):
    started = Started(tmp_path, rank=1)
    with started.writer.shared_staging(1, is_made=lambda: False) as directory:
        assert directory == started.shared
        assert not directory.exists()


def test_with_a_scratch_directory_checkpoints_begin_there(started: Started, tmp_path: Path):
    started.writer.use_scratch(tmp_path / "nvme", artifacts=False)
    directory = started.writer.staging(1)
    assert tmp_path / "nvme" in directory.parents
    (directory / "model.bin").write_bytes(b"weights")
    upload = upload_of(directory)
    assert started.writer.holds_in_scratch(upload)
    # Artifacts do not.
    assert started.writer.artifacts() == started.paths.artifacts
    moved = upload.from_scratch()
    part = started.writer.stage_in_time(1, moved)
    assert [file.path for file in part.files] == ["model.bin"]
    started.writer.drop(moved)
    assert not directory.exists()
    started.writer.close()


def test_what_is_not_in_the_scratch_directory_is_not_dropped(started: Started, tmp_path: Path):
    source = make_source(tmp_path)
    started.writer.drop(upload_of(source))
    assert source.exists()


def test_artifacts_are_copied_from_the_scratch_directory(started: Started, tmp_path: Path):
    started.writer.use_scratch(tmp_path / "nvme", artifacts=True)
    (started.writer.artifacts() / "plot.txt").write_text("a curve")
    started.writer.copy_artifacts()
    started.writer.finish()
    assert (started.paths.artifacts / "plot.txt").read_text() == "a curve"
    started.writer.close()


def test_a_filesystem_that_hangs_is_given_up_in_time(tmp_path: Path):
    started, may_end = Started(tmp_path, in_background=True), threading.Event()
    started.writer.begin_in_background(lambda: bool(may_end.wait(30)))
    with pytest.raises(CheckpointError, match=r"within 0 s\. SyncConfig\(sync_timeout"):
        started.writer.finish()
    may_end.set()


def test_without_anything_in_the_background_there_is_nothing_to_wait_for(started: Started):
    started.writer.finish()
