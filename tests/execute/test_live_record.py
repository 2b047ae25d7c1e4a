"""``live.json``, as the loop over an attempt writes it."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpctrain.config import FailureConfig, RunConfig
from hpctrain.execute import live_record
from hpctrain.execute.attempt_executor import AttemptExecutor
from hpctrain.execute.attempt_loop import AttemptLoop
from hpctrain.execute.executor_record import ExecutorRecord, UnwrittenRecord
from hpctrain.execute.recorder import Recorder
from hpctrain.rundir.live import NodeUse, read_live
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.states import RunEvent, RunState
from hpctrain.rundir.status import RunStatus
from hpctrain.testing.fake_ranks import FakeRanks


class Attempt:
    """An attempt of ranks that are not there, one a node."""

    def __init__(
        self, root: Path, num_ranks: int, record_cls: type[ExecutorRecord] = ExecutorRecord
    ) -> None:
        self.paths = RunPaths(root)
        self.paths.checkpoints.mkdir()
        self.ranks = FakeRanks(num_ranks)
        self.recorder = Recorder(
            paths=self.paths,
            run_config=RunConfig(name="run"),
            status=RunStatus(name="run", state=RunState.RUNNING, launcher="local"),
            record_cls=record_cls,
        )
        self.recorder.run_record.begin()
        self.recorder.begin_attempt(None)
        nodes = tuple(f"node{rank}" for rank in range(num_ranks))
        self.recorder.run_record.advance(RunEvent.JOINED, world_size=num_ranks, nodes=nodes)
        self.executor = AttemptExecutor(self.ranks)
        self.loop = AttemptLoop(
            self.recorder, self.executor, failure_config=FailureConfig(), may_end_hangs=False
        )

    def turn(self) -> None:
        self.loop.turn(self.executor.poll(0))

    def end(self) -> None:
        for rank in range(len(self.ranks)):
            self.ranks.send("done", rank, notified=False)
        self.loop.run()
        self.loop.conclude()


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    return Attempt(tmp_path, 1000)


@pytest.fixture
def each_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_record, "INTERVAL_S", 0.0)


@pytest.mark.usefixtures("each_turn")
def test_how_far_a_thousand_ranks_are_is_written(attempt: Attempt) -> None:
    attempt.ranks.uses = {"node7": {"cpus": 8, "cpu": 0.5, "gpus": [[90, 1, 2]]}, "other": {}}
    for rank in range(1000):
        attempt.ranks.send("phase", rank, phase="training" if rank < 998 else "importing")
        if rank % 2:
            attempt.ranks.report(rank, loss=1.0)
    attempt.turn()
    live = read_live(attempt.paths)
    assert live is not None
    assert (live.attempt, len(live)) == (1, 1000)
    assert live.phases == ("training",) * 998 + ("importing",) * 2
    assert live.reports == (0, 1) * 500
    assert max(live.idle_s) < 60
    assert live.node_of(999) == "node999"
    assert live.uses[7] == NodeUse(cpus=8, cpu=0.5, gpus=((90, 1, 2),))
    assert live.uses[8] == NodeUse()
    attempt.end()
    live = read_live(attempt.paths)
    assert live is not None
    assert set(live.phases) == {"done"}


@pytest.mark.usefixtures("each_turn")
def test_nothing_is_written_if_nothing_has_changed(attempt: Attempt) -> None:
    attempt.ranks.send("phase", 3, phase="training")
    attempt.turn()
    inode = attempt.paths.live.stat().st_ino
    attempt.turn()
    assert attempt.paths.live.stat().st_ino == inode
    attempt.ranks.send("heartbeat", 3)
    attempt.turn()
    assert attempt.paths.live.stat().st_ino != inode


def test_it_is_written_at_a_low_pace(attempt: Attempt) -> None:
    attempt.turn()
    first = read_live(attempt.paths)
    attempt.ranks.send("phase", 3, phase="training")
    attempt.turn()
    assert read_live(attempt.paths) == first
    attempt.end()
    assert read_live(attempt.paths) != first


def fill_disk(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(live_record, "write_atomic", write)


def take_name(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt.paths.live.mkdir()


@pytest.mark.usefixtures("each_turn")
@pytest.mark.parametrize("harm", [fill_disk, take_name])
def test_a_run_that_cannot_write_it_goes_on_and_says_so_once(
    tmp_path: Path,
    harm: Callable[[Attempt, Any], None],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    attempt = Attempt(tmp_path, 2)
    harm(attempt, monkeypatch)
    for _ in range(3):
        attempt.ranks.send("heartbeat", 0)
        attempt.turn()
    attempt.end()
    said = capfd.readouterr().err
    assert said.count("cannot write live.json") == 1, said
    assert not attempt.paths.live.is_file()


@pytest.mark.usefixtures("each_turn")
def test_an_executor_whose_run_another_has_taken_over_writes_nothing(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, 2)
    other = ExecutorRecord(attempt.paths, attempt.recorder.run_record.status)
    other.begin()
    attempt.ranks.send("heartbeat", 0)
    attempt.loop._live.write()
    assert not attempt.paths.live.exists()


@pytest.mark.usefixtures("each_turn")
def test_an_attempt_without_a_run_writes_nothing(tmp_path: Path) -> None:
    attempt = Attempt(tmp_path, 2, UnwrittenRecord)
    attempt.turn()
    attempt.end()
    assert not attempt.paths.live.exists()
