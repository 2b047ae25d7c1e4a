"""A BackendExecutor whose ranks are not there: how it pulls results, and how it ends."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hpctrain.backend import BackendConfig
from hpctrain.checkpoint import Checkpoint
from hpctrain.config import SyncConfig
from hpctrain.errors import ConfigError, LaunchError, TrainingFailedError, WorkerError
from hpctrain.execute import attempt_executor, backend_executor
from hpctrain.execute.backend_executor import BackendExecutor
from hpctrain.plan import spec
from hpctrain.plan.resources import Placement
from hpctrain.plan.spec import RunSpec
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.staging import StagedPart, seal, staging_directory
from hpctrain.testing.fake_ranks import FakeRanks


class FakeGroup(FakeRanks):
    """Stands for a `WorkerGroup`: real ones are in tests/execute/test_backend_executor.py."""

    hostnames = ("node0", "node1")
    is_refused = False

    def __init__(self, num_workers: int, *_: Any, path: Path, **__: Any) -> None:
        super().__init__(num_workers)
        self.paths = RunPaths(path)
        self.placement = Placement(
            tasks_per_node=(num_workers,), cpus_per_task=1, gpus_per_task=0, mem_bytes_per_task=None
        )
        self.ended: list[float] = []

    def start(self, timeout_s: float) -> None:
        if self.is_refused:
            raise LaunchError("no slots")

    def execute(self, function: Callable[[], Any]) -> list[Any]:
        return [function() for _ in range(len(self))]

    def shutdown(self, patience_s: float = 0.0) -> None:
        super().shutdown(patience_s)
        self.ended.append(patience_s)


@pytest.fixture(autouse=True)
def _fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(backend_executor.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(backend_executor, "WorkerGroup", FakeGroup)
    monkeypatch.setattr(attempt_executor, "_QUIET_S", 0.01)


@pytest.fixture
def executor() -> Iterator[BackendExecutor]:
    executor = BackendExecutor(BackendConfig(), num_workers=2)
    executor.start()
    yield executor
    executor.shutdown()


def ranks_of(executor: BackendExecutor) -> FakeGroup:
    group = executor.get_worker_group()
    assert isinstance(group, FakeGroup)
    return group


def train(config: dict[str, Any]) -> None:
    raise AssertionError("fake ranks call nothing")


def end(ranks: FakeGroup, values: list[Any]) -> None:
    ranks.send("done", 0, spec.pack(values, what="the return value"))
    ranks.send("done", 1)


def save(ranks: FakeGroup, report: int) -> None:
    """Let both ranks report, and rank 1 give a part of a checkpoint."""
    line = json.dumps({"metrics": {"step": report}}).encode()
    directory = staging_directory(ranks.paths.checkpoints, attempt=1, report=report, rank=1)
    directory.mkdir(parents=True)
    (directory / "model.bin").write_bytes(b"%d" % report)
    ranks.send("report", 0, line)
    ranks.send("report", 1, line, part_follows=True)
    part = StagedPart(files=tuple(seal(directory)))
    ranks.send("part", 1, part.to_bytes(), report=report)


def test_results_come_one_by_one_and_none_after_the_last(executor: BackendExecutor):
    executor.start_training(train)
    ranks = ranks_of(executor)
    for step in (1, 2):
        for rank in (1, 0):
            ranks.report(rank, step=step, of=rank)
    end(ranks, ["a", "b"])
    for step in (1, 2):
        expected = [{"step": step, "of": rank} for rank in (0, 1)]
        assert executor.get_next_results() == expected
    assert executor.get_next_results() is None
    assert executor.get_next_results() is None
    assert executor.finish_training() == ["a", "b"]


def test_what_shows_and_stops_runs_finds_none_in_its_directory(executor: BackendExecutor):
    executor.start_training(train)
    ranks = ranks_of(executor)
    save(ranks, 1)
    end(ranks, ["a", "b"])
    assert executor.finish_training() == ["a", "b"]
    paths = ranks.paths
    assert {entry.name for entry in paths.root.iterdir()} <= {"checkpoints", paths.spec.name}


def test_a_checkpoint_is_complete_with_its_result(executor: BackendExecutor):
    executor.start_training(train)
    ranks = ranks_of(executor)
    assert executor.get_checkpoint() is None
    for report in (1, 2):
        save(ranks, report)
        assert executor.get_next_results() == 2 * [{"step": report}]
        newest = executor.get_checkpoint()
        assert newest is not None
        assert (Path(newest.path) / "model.bin").read_bytes() == b"%d" % report
    told = [details["path"] for op, details in ranks.sent if op == "committed"]
    assert told == [str(ranks.paths.checkpoints / f"00000{report}") for report in (1, 2)]


def test_a_caller_who_takes_his_time_ends_no_rank(
    executor: BackendExecutor, monkeypatch: pytest.MonkeyPatch
):
    executor.start_training(train)
    ranks = ranks_of(executor)
    for rank in (0, 1):
        ranks.report(rank, step=1)
    assert executor.get_next_results() == 2 * [{"step": 1}]
    now = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: now() + 86400.0)
    for rank in (0, 1):
        ranks.report(rank, step=2)
    end(ranks, [None, None])
    assert executor.finish_training() == [None, None]


def test_ranks_that_ask_for_write_slots_get_them(executor: BackendExecutor):
    executor.start_training(train)
    ranks = ranks_of(executor)
    ranks.send("slot", 1, number=3, wanted=True)
    end(ranks, [None, None])
    executor.finish_training()
    assert ("slot", {"ranks": [1], "number": 3}) in ranks.sent


def test_ranks_write_and_wait_as_the_sync_config_says(executor: BackendExecutor) -> None:
    sync_config = SyncConfig(
        sync_timeout=7,
        scratch_dir="$TMPDIR",
        sync_artifacts=True,
        max_writers=1,
        max_bytes_per_s=1e6,
    )
    executor.start_training(train, sync_config=sync_config)
    ranks = ranks_of(executor)
    settings = RunSpec.from_bytes(ranks.paths.spec.read_bytes()).settings
    kept = ("scratch_dir", "sync_artifacts", "max_writers", "max_bytes_per_s")
    assert [getattr(settings, name) for name in kept] == ["$TMPDIR", True, 1, 1e6]
    assert settings.commit_timeout_s == 7
    for rank in (0, 1):
        ranks.send("slot", rank, number=1, wanted=True)
    end(ranks, [None, None])
    executor.finish_training()
    # One may write at a time.
    assert [details for op, details in ranks.sent if op == "slot"] == [{"ranks": [0], "number": 1}]


def test_a_rank_that_fails_is_named_with_its_checkpoint(executor: BackendExecutor):
    executor.start_training(train)
    ranks = ranks_of(executor)
    save(ranks, 1)
    executor.get_next_results()
    ranks.fail(1, "no more")
    with pytest.raises(WorkerError, match=r"rank 1 of 2 on node1.*no more") as raised:
        executor.finish_training()
    assert str(ranks.paths.checkpoints / "000001") in str(raised.value)


def test_ranks_that_do_not_report_equally_often_are_named(executor: BackendExecutor):
    executor.start_training(train)
    ranks = ranks_of(executor)
    ranks.report(0, step=1)
    for rank in (0, 1):
        ranks.send("returned", rank, reports=1 - rank, collectives=0)
    end(ranks, [None, None])
    with pytest.raises(TrainingFailedError, match=r"Every rank must call report\(\) equally often"):
        executor.finish_training()


def test_calls_in_the_wrong_order_are_refused(executor: BackendExecutor):
    with pytest.raises(ValueError, match=r"trains nothing; call start_training\(\) first"):
        executor.get_next_results()
    with pytest.raises(ValueError, match=r"is started already; call shutdown\(\) first"):
        executor.start()
    executor.start_training(train)
    with pytest.raises(ValueError, match="trains already"):
        executor.start_training(train)
    executor.shutdown()
    with pytest.raises(ValueError, match=r"has no workers; call start\(\) first"):
        executor.get_worker_group()


def test_a_checkpoint_that_is_not_there_is_refused(executor: BackendExecutor, tmp_path: Path):
    with pytest.raises(ConfigError, match="gone"):
        executor.start_training(train, checkpoint=Checkpoint(tmp_path / "gone"))


@pytest.mark.parametrize(("graceful", "patience_s"), [(True, 10.0), (False, 0.0)])
def test_its_directory_ends_with_it(graceful: bool, patience_s: float):
    executor = BackendExecutor(BackendConfig(), num_workers=2)
    executor.start()
    executor.start_training(train)
    ranks = ranks_of(executor)
    executor.shutdown(graceful_termination=graceful)
    assert ranks.ended == [patience_s]
    assert not ranks.paths.root.exists()
    assert not executor.is_started()


def test_workers_that_cannot_be_started_leave_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(FakeGroup, "is_refused", True)
    executor = BackendExecutor(BackendConfig())
    with pytest.raises(LaunchError, match="no slots"):
        executor.start()
    assert not executor.is_started()
    assert list(tmp_path.iterdir()) == []
