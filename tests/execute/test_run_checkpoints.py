from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from hpctrain.config import CheckpointConfig
from hpctrain.control.wire import encode_frame
from hpctrain.execute import run_checkpoints
from hpctrain.execute.executor_record import ExecutorRecord
from hpctrain.execute.run_checkpoints import RunCheckpoints
from hpctrain.execute.tracker import ReportRound
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.staging import StagedPart, staging_directory
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus
from tests.execute.conftest import SlowDisk


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path / "run")
    paths.checkpoints.mkdir(parents=True)
    return paths


@pytest.fixture
def checkpoints(paths: RunPaths) -> RunCheckpoints:
    status = RunStatus(name="run", state=RunState.RUNNING, launcher="local", attempt=1)
    return RunCheckpoints(ExecutorRecord(paths, status), CheckpointConfig())


def stage(paths: RunPaths) -> Path:
    part = staging_directory(paths.checkpoints, attempt=1, report=2, rank=0)
    part.mkdir(parents=True)
    (part / "model.bin").write_bytes(b"half")
    return part.parent


def test_the_next_attempt_begins_while_what_the_last_one_left_is_being_deleted(
    paths: RunPaths, checkpoints: RunCheckpoints, disk: SlowDisk
):
    left = stage(paths)
    checkpoints.clear()
    assert not left.exists(), "another attempt may have the same number"
    assert checkpoints.begin_attempt() is None
    assert len(list(paths.checkpoints.iterdir())) == 1
    disk.lets.set()
    checkpoints.close()
    assert not list(paths.checkpoints.iterdir())


def test_on_a_full_disk_what_an_attempt_left_is_gone_before_anything_is_written(
    paths: RunPaths, checkpoints: RunCheckpoints, monkeypatch: pytest.MonkeyPatch
):
    is_known_full, rmtree = threading.Event(), shutil.rmtree

    def delete(path: Path, **options: Any) -> None:
        # Otherwise it might have ended by chance.
        assert is_known_full.wait(60)
        rmtree(path, **options)

    def has_room(paths: RunPaths) -> bool:
        is_known_full.set()
        return False

    monkeypatch.setattr(shutil, "rmtree", delete)
    monkeypatch.setattr(run_checkpoints, "has_room", has_room)
    for _ in range(20):
        stage(paths)
        is_known_full.clear()
        checkpoints.clear()
        assert not list(paths.checkpoints.iterdir())


def test_a_long_error_of_a_rank_fits_into_the_frame_that_all_ranks_get(
    checkpoints: RunCheckpoints,
):
    text = "\N{ROCKET}" * 3_000_000
    failed = ReportRound(report=2, lines={}, parts={0: StagedPart(files=(), error=text)})
    sent: list[dict[str, Any]] = []

    def broadcast(op: str, **details: Any) -> None:
        sent.append({"op": op, **details})

    assert checkpoints.commit(failed, broadcast) is None
    assert sent[0]["error"].startswith("\N{ROCKET}" * 1000)
    encode_frame(sent[0])
