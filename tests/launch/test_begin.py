"""Moving a run aside, and the claim that is in it."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path

import pytest

from hpctrain.errors import ConfigError
from hpctrain.launch import begin
from hpctrain.launch.begin import _move_aside
from hpctrain.launch.claim import claimed
from hpctrain.rundir.paths import RunPaths


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path / "runs" / "run")
    paths.checkpoints.mkdir(parents=True)
    return paths


def test_a_run_is_moved_beside_to_a_name_that_says_when(paths: RunPaths):
    aside = _move_aside(paths)
    assert aside.parent == paths.root.parent
    assert re.fullmatch(r"run\.\d{8}-\d{6}", aside.name)
    assert (aside / "checkpoints").is_dir()
    assert not paths.root.exists()


def test_nothing_is_written_over(paths: RunPaths, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(begin.time, "strftime", lambda _: "20260131-235959")
    taken = paths.root.with_name("run.20260131-235959")
    # An empty directory too: rename() would replace it.
    taken.mkdir()
    taken.with_name(f"{taken.name}-2").write_text("a file")
    assert _move_aside(paths).name == "run.20260131-235959-3"
    assert list(taken.iterdir()) == []


def test_a_link_to_a_run_is_moved_and_not_what_it_leads_to(paths: RunPaths):
    elsewhere = paths.root.rename(paths.root.parent.parent / "elsewhere")
    paths.root.symlink_to(elsewhere)
    aside = _move_aside(paths)
    assert aside.is_symlink()
    assert aside.resolve() == elsewhere
    assert not paths.root.is_symlink()


def test_a_run_that_cannot_be_moved_is_an_error(paths: RunPaths, monkeypatch: pytest.MonkeyPatch):
    def busy(*_: object) -> None:
        raise OSError(16, "Device or resource busy")

    monkeypatch.setattr(begin.os, "rename", busy)
    with pytest.raises(ConfigError, match="cannot be moved aside: Device or resource busy"):
        _move_aside(paths)
    assert [path.name for path in paths.root.parent.iterdir()] == ["run"]


def test_who_has_moved_a_run_holds_neither_the_moved_one_nor_that_of_another(paths: RunPaths):
    first, second = ExitStack(), ExitStack()
    first.enter_context(claimed(paths))
    aside = RunPaths(_move_aside(paths))
    second.enter_context(claimed(paths, patience_s=5.0))
    with claimed(aside, patience_s=5.0):
        pass
    # The same number as that of the claim that was moved.
    owner = (paths.claim(1) / "owner").read_bytes()
    assert owner
    first.close()
    assert (paths.claim(1) / "owner").read_bytes() == owner
    second.close()
    assert (paths.claim(1) / "owner").read_bytes() == b""
