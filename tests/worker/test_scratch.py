from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hpctrain
from hpctrain import (
    Checkpoint,
    CheckpointUploadMode,
    ConfigError,
    DataParallelTrainer,
    Result,
    RunConfig,
    ScalingConfig,
    SyncConfig,
)
from hpctrain.bulk.copy import Copied
from hpctrain.rundir.bulk import Bulk
from hpctrain.worker.scratch import Scratch
from tests import runs


@pytest.fixture
def nvme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A disk of the node, known to ranks by a variable."""
    directory = tmp_path / "nvme"
    directory.mkdir()
    monkeypatch.setenv("NVME", str(directory))
    return directory


def fit(directory: Path, train: Callable[[], Any], *, workers: int = 0, **sync: Any) -> Result:
    scratch = SyncConfig(scratch_dir="$NVME/", **sync)
    return runs.fit(train, directory / "runs", num_workers=workers, sync_config=scratch)


@pytest.mark.parametrize("mode", CheckpointUploadMode)
def test_a_checkpoint_is_written_to_the_disk_of_the_node_and_lands_in_the_run(
    tmp_path: Path, nvme: Path, mode: CheckpointUploadMode
):
    def train() -> str:
        with hpctrain.checkpoint_dir() as d:
            Path(d, "model.bin").write_text("weights")
            hpctrain.report({}, Checkpoint(d), checkpoint_upload_mode=mode)
            return d

    result = fit(tmp_path, train)
    assert Path(result.return_value).is_relative_to(nvme)
    assert result.checkpoint is not None
    assert (result.checkpoint.path / "model.bin").read_text() == "weights"
    assert [path.name for path in nvme.glob("*/*")] == []


@pytest.mark.mpi
def test_ranks_write_to_directories_of_their_own_and_artifacts_follow(
    tmp_path: Path, nvme: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HPCTRAIN_LAUNCHER", "local")

    def train() -> list[bool]:
        from pathlib import Path

        import hpctrain
        from hpctrain import Checkpoint, CheckpointUploadMode

        rank = hpctrain.get_context().get_world_rank()
        artifacts = hpctrain.artifact_dir()
        (artifacts / "plots").mkdir()
        for step in range(3):
            (artifacts / "plots" / f"{rank}.txt").write_text(f"plot {step}")
            with hpctrain.checkpoint_dir() as d:
                (Path(d) / f"{rank}.bin").write_text(str(step))
                hpctrain.report(
                    {}, Checkpoint(d), checkpoint_upload_mode=CheckpointUploadMode.ASYNC
                )
        (artifacts / "plots" / f"{rank}.txt").write_text("last plot")
        return [hpctrain.get_context().get_storage() in artifacts.parents]

    result = fit(tmp_path, train, workers=2, sync_artifacts=True)
    assert result.return_value == [False]
    checkpoint = result.checkpoint
    assert checkpoint is not None
    assert [(checkpoint.path / f"{rank}.bin").read_text() for rank in range(2)] == ["2", "2"]
    plots = result.path / "artifacts" / "plots"
    assert {p.name: p.read_text() for p in plots.iterdir()} == {
        "0.txt": "last plot",
        "1.txt": "last plot",
    }
    assert [path.name for path in nvme.glob("*/*")] == []


def test_without_syncing_artifacts_are_written_where_they_belong(tmp_path: Path, nvme: Path):
    result = fit(tmp_path, lambda: str(hpctrain.artifact_dir()))
    assert result.return_value == str(result.path / "artifacts")


def test_only_artifacts_that_are_new_or_changed_are_copied(tmp_path: Path):
    copied: list[str] = []

    class Counted(Bulk):
        def copy(self, source: Path, target: Path) -> Copied | None:
            copied.append(source.name)
            return super().copy(source, target)

    bulk = Counted()
    scratch = Scratch(tmp_path, run=tmp_path / "run", rank=0)
    (scratch.artifacts / "a").write_text("a")
    scratch.copy_artifacts(tmp_path / "artifacts", bulk)
    (scratch.artifacts / "b").write_text("b")
    scratch.copy_artifacts(tmp_path / "artifacts", bulk)
    (scratch.artifacts / "a").write_text("longer")
    scratch.copy_artifacts(tmp_path / "artifacts", bulk)
    assert copied == ["a", "b", "a"]
    assert sorted(p.name for p in (tmp_path / "artifacts").iterdir()) == ["a", "b"]


def test_artifacts_with_the_longest_names_are_copied_and_what_is_no_file_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    scratch = Scratch(tmp_path, run=tmp_path / "run", rank=0)
    longest = "n" * os.pathconf(tmp_path, "PC_NAME_MAX")
    (scratch.artifacts / longest).write_text("a")
    (scratch.artifacts / "sub").mkdir()
    (scratch.artifacts / "sub/b").write_text("b")
    (scratch.artifacts / "nothing").symlink_to("gone")
    (scratch.artifacts / "loop").symlink_to("loop")
    os.mkfifo(scratch.artifacts / "pipe")
    # The path of a socket may be no longer than 107 bytes.
    monkeypatch.chdir(scratch.artifacts)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        scratch.copy_artifacts(tmp_path / "artifacts", Bulk())
    assert sorted(os.listdir(tmp_path / "artifacts")) == [longest, "sub"]
    assert os.listdir(tmp_path / "artifacts/sub") == ["b"]


def test_what_is_deleted_while_artifacts_are_copied_is_none_of_them(tmp_path: Path):
    scratch = Scratch(tmp_path, run=tmp_path / "run", rank=0)
    for folder in ("a", "b"):
        (scratch.artifacts / folder).mkdir()
    for name in ("c", "d"):
        (scratch.artifacts / name).write_text(name)

    class Cleaning(Bulk):
        def copy(self, source: Path, target: Path) -> Copied | None:
            for path in set(scratch.artifacts.iterdir()) - {source}:
                path.rmdir() if path.is_dir() else path.unlink()
            return super().copy(source, target)

    scratch.copy_artifacts(tmp_path / "artifacts", Cleaning())
    (copied,) = (tmp_path / "artifacts").iterdir()
    assert copied.read_text() == copied.name


def test_what_is_deleted_when_its_copy_begins_is_left_out(tmp_path: Path):
    scratch = Scratch(tmp_path, run=tmp_path / "run", rank=0)
    for name in ("kept", "temporary"):
        (scratch.artifacts / name).write_text(name)

    class Late(Bulk):
        def copy(self, source: Path, target: Path) -> Copied | None:
            if source.name == "temporary":
                source.unlink()
            return super().copy(source, target)

    scratch.copy_artifacts(tmp_path / "artifacts", Late())
    assert os.listdir(tmp_path / "artifacts") == ["kept"]


def test_an_artifact_that_is_there_and_cannot_be_copied_is_an_error(tmp_path: Path):
    scratch = Scratch(tmp_path, run=tmp_path / "run", rank=0)
    (scratch.artifacts / "a").write_text("a")

    class Nowhere(Bulk):
        def copy(self, source: Path, target: Path) -> Copied | None:
            target.parent.rmdir()
            return super().copy(source, target)

    with pytest.raises(FileNotFoundError):
        scratch.copy_artifacts(tmp_path / "artifacts", Nowhere())


def test_what_a_killed_attempt_left_is_deleted(tmp_path: Path):
    left = Scratch(tmp_path, run=tmp_path / "run", rank=0).checkpoint(3)
    again = Scratch(tmp_path, run=tmp_path / "run", rank=0)
    assert not left.exists()
    assert list(again.artifacts.iterdir()) == []
    assert os.stat(again.path.parent).st_mode & 0o777 == 0o700


def test_a_copy_that_hangs_is_an_error_after_the_timeout(
    tmp_path: Path, nvme: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HPCTRAIN_LAUNCHER", "local")

    def train() -> None:
        from pathlib import Path

        import hpctrain
        from hpctrain import Checkpoint
        from hpctrain.rundir import bulk

        def never(*_: object) -> None:
            threading.Event().wait()

        bulk.Bulk.copy = never  # type: ignore[method-assign]
        with hpctrain.checkpoint_dir() as d:
            Path(d, "model.bin").write_text("weights")
            hpctrain.report({}, Checkpoint(d))

    with pytest.raises(Exception, match="could not copy its part of the checkpoint of report 1"):
        fit(tmp_path, train, workers=1, sync_timeout=0.5)


@pytest.mark.parametrize(
    ("scratch_dir", "message"),
    [
        ("$NOT_THERE", r"'\$NOT_THERE' is '\$NOT_THERE' on .*: an absolute path is needed"),
        ("relative", r"'relative' is 'relative' on"),
        ("/proc", r"/proc/hpctrain-run-.* cannot be made: .* It has to be a directory"),
    ],
)
def test_a_scratch_directory_that_cannot_be_is_refused(
    tmp_path: Path, scratch_dir: str, message: str
):
    trainer = DataParallelTrainer(
        lambda: None,
        scaling_config=ScalingConfig(num_workers=0),
        run_config=RunConfig(
            name="run",
            storage_path=tmp_path,
            sync_config=SyncConfig(scratch_dir=scratch_dir),
            verbose=0,
        ),
    )
    with pytest.raises(ConfigError, match=message):
        trainer.fit()
