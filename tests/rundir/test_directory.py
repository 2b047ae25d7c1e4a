from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from hpctrain.errors import RunStoppedError
from hpctrain.rundir import directory as directory_module
from hpctrain.rundir.directory import HeldDirectory
from hpctrain.rundir.files import make_directory
from hpctrain.rundir.paths import RunPaths


@pytest.fixture(autouse=True)
def _without_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory_module, "_DOUBT_S", 0.0)


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path / "run")
    paths.root.mkdir()
    write_plan(paths, "one")
    return paths


def write_plan(paths: RunPaths, run_id: str | None) -> None:
    beside = paths.root / "beside"
    beside.write_text(json.dumps({} if run_id is None else {"run_id": run_id}))
    os.replace(beside, paths.plan)


def test_a_directory_that_stays_is_as_it_was(paths: RunPaths) -> None:
    held = HeldDirectory(paths)
    # As by another fit() of the same name.
    write_plan(paths, "one")
    held.check()
    assert held.is_here
    assert held.paths == paths


def test_a_directory_that_is_held_no_more_is_taken_as_it_is(paths: RunPaths) -> None:
    held = HeldDirectory(paths)
    held.close()
    held.close()
    shutil.rmtree(paths.root)
    held.check()
    assert held.paths == paths


def test_a_run_of_an_older_version_is_known_by_its_directory(paths: RunPaths) -> None:
    write_plan(paths, None)
    held = HeldDirectory(paths)
    write_plan(paths, None)
    held.check()
    shutil.rmtree(paths.root)
    with pytest.raises(RunStoppedError, match="was removed"):
        held.check()


def test_a_directory_that_was_removed_is_not_written_to(paths: RunPaths) -> None:
    held = HeldDirectory(paths)
    shutil.rmtree(paths.root)
    with pytest.raises(RunStoppedError, match=r"was removed\. .* fit\(\) begins it anew"):
        held.check()
    with pytest.raises(FileNotFoundError):
        held.paths.status.write_text("{}")
    assert not paths.root.exists()


def test_a_directory_that_was_moved_is_written_to_where_it_lies(
    paths: RunPaths, tmp_path: Path
) -> None:
    held = HeldDirectory(paths)
    paths.root.rename(tmp_path / "moved")
    with pytest.raises(RunStoppedError, match=f"was moved to {tmp_path}/moved.*name='moved'"):
        held.check()
    held.paths.status.write_text("{}")
    assert (tmp_path / "moved" / "status.json").read_text() == "{}"


def test_another_directory_at_the_same_path_is_not_touched(paths: RunPaths, tmp_path: Path) -> None:
    held = HeldDirectory(paths)
    paths.root.rename(tmp_path / "moved")
    shutil.copytree(tmp_path / "moved", paths.root)
    with pytest.raises(RunStoppedError, match="is another one than the run began in"):
        held.check()
    held.paths.status.write_text("{}")
    assert not paths.status.exists()


@pytest.mark.parametrize(("run_id", "why"), [(None, "lost its files"), ("two", "another run")])
def test_other_files_in_the_same_directory_are_another_run(
    paths: RunPaths, run_id: str | None, why: str
) -> None:
    held = HeldDirectory(paths)
    paths.plan.unlink()
    if run_id is not None:
        write_plan(paths, run_id)
    with pytest.raises(RunStoppedError, match=why):
        held.check()


def test_a_filesystem_that_does_not_answer_says_nothing(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldDirectory(paths)
    stat = os.stat

    def no_answer(path: object, **options: object) -> os.stat_result:
        if path == paths.root:
            raise OSError(116, "Stale file handle")
        return stat(path)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "stat", no_answer)
    held.check()


def test_directories_are_made_below_one_that_is_there_and_nowhere_else(tmp_path: Path) -> None:
    make_directory(tmp_path / "a" / "b", below=tmp_path)
    make_directory(tmp_path / "a" / "b", below=tmp_path)
    assert (tmp_path / "a" / "b").is_dir()
    with pytest.raises(FileNotFoundError):
        make_directory(tmp_path / "gone" / "logs" / "1", below=tmp_path / "gone")
    assert not (tmp_path / "gone").exists()
