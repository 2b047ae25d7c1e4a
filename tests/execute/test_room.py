from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from hpctrain.execute import room
from hpctrain.execute.room import await_room
from hpctrain.rundir.paths import RunPaths


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return RunPaths(tmp_path)


def never() -> bool:
    raise AssertionError("there was nothing to wait for")


def test_with_room_there_is_no_wait_and_nothing_is_left(paths: RunPaths) -> None:
    await_room(paths, may_wait=never)
    assert os.listdir(paths.root) == []


def test_a_disk_without_room_is_waited_for(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(room, "_LOOK_INTERVAL_S", 0.0)
    answers = iter([OSError(28, "No space left on device")] * 2 + [None])
    monkeypatch.setattr(room, "_write_probe", lambda _: next(answers))
    await_room(paths, may_wait=lambda: True)
    assert next(answers, "none left") == "none left"
    assert f"{paths.root} cannot be written to: No space left" in capsys.readouterr().err


def test_a_wish_to_stop_ends_the_wait(paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_write_probe", lambda _: OSError(28, "No space left on device"))
    await_room(paths, may_wait=lambda: False)


def test_a_directory_that_is_gone_is_not_waited_for(paths: RunPaths) -> None:
    await_room(RunPaths(paths.root / "gone"), may_wait=never)


def test_a_limit_of_file_sizes_is_not_waited_for(paths: RunPaths) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        await_room(paths, may_wait=never)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert os.listdir(paths.root) == []
