from __future__ import annotations

import json
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy
import pytest

from hpctrain.checkpoint import MANIFEST_NAME, Checkpoint
from hpctrain.errors import CheckpointError, ConfigError
from hpctrain.rundir import staging
from hpctrain.rundir.metrics import read_reports
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.staging import StagedFile
from hpctrain.worker.report import Session, Verdict, encode_metrics
from hpctrain.world import World

PATIENCE_S = 10.0


class FakeExecutor:
    """The other end of a session: keeps what was said, and decides on checkpoints at once."""

    def __init__(self) -> None:
        self.session: Session | None = None
        self.reports: list[dict[str, Any]] = []
        self.staged: dict[int, list[StagedFile]] = {}
        self.decide: Callable[[int], Verdict | None] = lambda number: None

    def report(self, line: bytes) -> None:
        assert line.endswith(b"\n")
        self.reports.append(json.loads(line))

    def stage(self, report: int, line: bytes, parts: bytes) -> None:
        self.report(line)
        self.staged[report] = [StagedFile(*part) for part in json.loads(parts)]
        verdict = self.decide(report)
        if verdict is not None:
            assert self.session is not None
            self.session.decide(report, verdict)


Start = Callable[..., Session]


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    paths = RunPaths(tmp_path / "run")
    paths.checkpoints.mkdir(parents=True)
    return paths


@pytest.fixture
def executor() -> FakeExecutor:
    return FakeExecutor()


@pytest.fixture
def start(paths: RunPaths, executor: FakeExecutor) -> Iterator[Start]:
    sessions = []

    def start(
        *,
        rank: int = 0,
        first_report: int = 0,
        attempt: int = 1,
        checkpoint: Checkpoint | None = None,
        commit_timeout_s: float = PATIENCE_S,
    ) -> Session:
        world = World(
            attempt=attempt,
            world_rank=rank,
            world_size=4,
            local_rank=rank,
            local_world_size=4,
            node_rank=0,
            num_nodes=1,
            hostname="n1",
        )
        session = Session(
            world=world,
            paths=paths,
            channel=executor,
            first_report=first_report,
            checkpoint=checkpoint,
            commit_timeout_s=commit_timeout_s,
        )
        executor.session = session
        sessions.append(session)
        return session

    yield start
    for session in sessions:
        session.close()


class FakeTensor:
    """What a tensor on a device looks like to JSON."""

    shape = ()

    def item(self) -> float:
        raise AssertionError("copied from the device")


@pytest.mark.parametrize("metrics", [0.5, [("loss", 0.5)], None, "loss"])
def test_metrics_that_are_no_dict_are_refused(start: Start, metrics: Any):
    session = start()
    with pytest.raises(ConfigError, match=r"metrics are a dict of names and numbers, and this is"):
        session.report(metrics)
    assert session.reports == 0


def test_a_tensor_is_refused_without_copying_it(start: Start, executor: FakeExecutor):
    message = r"metrics hold <.*FakeTensor object.* of type .*FakeTensor\. .*use \.item\(\)"
    with pytest.raises(ConfigError, match=message):
        start().report({"loss": FakeTensor()})
    assert executor.reports == []


def test_a_tensor_of_torch_is_refused():
    torch = pytest.importorskip("torch")
    with pytest.raises(ConfigError, match=r"metrics hold tensor\(0\.5000\) of type torch\.Tensor"):
        encode_metrics({"loss": torch.tensor(0.5)})


def test_an_array_is_refused():
    with pytest.raises(ConfigError, match=r"of type numpy\.ndarray\. .*\.tolist\(\)"):
        encode_metrics({"losses": numpy.zeros(3)})


def test_metrics_that_hold_themselves_are_refused():
    metrics: dict[str, Any] = {}
    metrics["self"] = metrics
    with pytest.raises(ConfigError, match=r"report\(\): Circular reference"):
        encode_metrics(metrics)


def test_a_name_that_is_no_string_is_refused():
    with pytest.raises(ConfigError, match=r"report\(\): keys must be str"):
        encode_metrics({("a", "b"): 1})


def test_numbers_of_numpy_and_nested_mappings_are_metrics():
    metrics = {
        "loss": numpy.float32(0.5),
        "double": numpy.float64(0.25),
        "rows": numpy.int64(3),
        "flag": numpy.bool_(True),
        "zero": numpy.array(7),
        "nested": MappingProxyType({"a": OrderedDict(b=[1, None, "x"])}),
    }
    assert json.loads(encode_metrics(metrics)) == {
        "loss": 0.5,
        "double": 0.25,
        "rows": 3,
        "flag": True,
        "zero": 7,
        "nested": {"a": {"b": [1, None, "x"]}},
    }


def test_rank_0_writes_its_reports_down_before_report_returns(
    start: Start, paths: RunPaths, executor: FakeExecutor
):
    session = start()
    session.report({"loss": 0.5})
    (report,) = read_reports(paths)
    assert (report["report"], report["attempt"], report["checkpoint"]) == (1, 1, None)
    assert report["metrics"] == {"loss": 0.5}
    assert executor.reports == [report]


def test_other_ranks_report_without_a_file(start: Start, paths: RunPaths, executor: FakeExecutor):
    start(rank=1).report({"loss": 0.5})
    assert len(executor.reports) == 1
    assert not paths.metrics.exists()


def test_numbers_go_on_after_a_resume(start: Start, executor: FakeExecutor, tmp_path: Path):
    session = start(first_report=13, attempt=2, checkpoint=Checkpoint(tmp_path))
    assert session.reports == 13
    assert session.checkpoint == Checkpoint(tmp_path)
    session.report({})
    session.report({})
    assert [(r["attempt"], r["report"]) for r in executor.reports] == [(2, 14), (2, 15)]


def commit_to(directory: Path) -> Callable[[int], Verdict]:
    def decide(number: int) -> Verdict:
        target = directory / f"{number:06d}"
        target.mkdir()
        return Verdict(str(target), None)

    return decide


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "model.bin").write_bytes(b"weights")
    return directory


def test_a_checkpoint_is_staged_as_a_copy_and_is_the_newest_once_it_is_committed(
    start: Start, paths: RunPaths, executor: FakeExecutor, model: Path
):
    executor.decide = commit_to(paths.checkpoints)
    session = start(first_report=4)
    session.report({"loss": 0.5}, Checkpoint(model))
    assert [file.path for file in executor.staged[5]] == ["model.bin"]
    staged = paths.checkpoints / ".tmp-1-000005" / "rank-00000" / "model.bin"
    assert staged.read_bytes() == (model / "model.bin").read_bytes() == b"weights"
    assert session.checkpoint == Checkpoint(paths.checkpoints / "000005")
    assert read_reports(paths)[-1]["checkpoint"] == "000005"


def test_a_directory_inside_the_commit_is_taken_without_a_copy(
    start: Start, paths: RunPaths, executor: FakeExecutor, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: object) -> None:
        raise AssertionError("copied")

    monkeypatch.setattr(staging, "copy_into", refuse)
    executor.decide = commit_to(paths.checkpoints)
    session = start()
    directory = session.staging()
    (directory / "model.bin").write_bytes(b"weights")
    session.report({}, Checkpoint(directory))
    assert [file.path for file in executor.staged[1]] == ["model.bin"]


def test_what_was_saved_for_a_report_that_was_never_made_is_in_no_checkpoint(
    start: Start, paths: RunPaths, executor: FakeExecutor, model: Path
):
    executor.decide = commit_to(paths.checkpoints)
    session = start()
    (session.staging() / "half-written.bin").write_bytes(b"half")
    assert list(session.staging().iterdir()) == []
    (session.staging() / "half-written.bin").write_bytes(b"half")
    session.report({}, Checkpoint(model))
    assert [file.path for file in executor.staged[1]] == ["model.bin"]


def test_a_committed_checkpoint_can_be_reported_again_without_its_manifest(
    start: Start, paths: RunPaths, executor: FakeExecutor, model: Path
):
    (model / MANIFEST_NAME).write_text("of another commit")
    executor.decide = commit_to(paths.checkpoints)
    start().report({}, Checkpoint(model))
    assert [file.path for file in executor.staged[1]] == ["model.bin"]


def test_an_empty_checkpoint_is_refused(start: Start, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match=r"holds no file\. Save into it before report"):
        start().report({}, Checkpoint(tmp_path / "empty"))


def test_a_commit_that_failed_is_told_with_its_reason(
    start: Start, paths: RunPaths, executor: FakeExecutor, model: Path
):
    executor.decide = lambda number: Verdict(None, "Permission denied (/x)")
    session = start(first_report=2)
    message = r"checkpoint of report 3 was not committed: Permission denied \(/x\)"
    with pytest.raises(CheckpointError, match=message):
        session.report({}, Checkpoint(model))
    assert session.checkpoint is None
    # The metrics were reported; that the checkpoint is not there is said by the checkpoints.
    assert [report["report"] for report in read_reports(paths)] == [3]


def test_a_rank_that_waits_in_vain_for_a_commit_says_what_is_missing(start: Start, model: Path):
    message = (
        r"rank 2 waited 0 s in report 1 for its checkpoint: not every rank made this report\. "
        r"SyncConfig\(sync_timeout=\.\.\.\) sets how long to wait"
    )
    with pytest.raises(CheckpointError, match=message):
        start(rank=2, commit_timeout_s=0.05).report({}, Checkpoint(model))


def full_disk(*_: object) -> int:
    raise OSError(28, "No space left on device")


def test_a_full_disk_under_the_checkpoints_is_told_with_the_rank_and_the_last_checkpoint(
    start: Start, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    session = start(rank=3, first_report=6, checkpoint=Checkpoint(tmp_path))
    monkeypatch.setattr(os, "fsync", full_disk)
    message = (
        rf"rank 3 could not write its part of the checkpoint of report 7 to .*: No space left on "
        rf"device\. The last complete checkpoint is {tmp_path}; free space, or choose another"
    )
    with pytest.raises(CheckpointError, match=message) as raised:
        session.report({}, Checkpoint(model))
    assert isinstance(raised.value.__cause__, OSError)


def test_a_full_disk_under_the_metrics_is_told_with_the_file(
    start: Start, paths: RunPaths, executor: FakeExecutor, monkeypatch: pytest.MonkeyPatch
):
    session = start()
    monkeypatch.setattr(os, "write", full_disk)
    message = rf"report 1 could not be written to {paths.metrics}: No space left on device"
    with pytest.raises(CheckpointError, match=message):
        session.report({})
    monkeypatch.undo()
    assert executor.reports == []


def test_a_report_that_fits_only_in_part_is_an_error(
    start: Start, paths: RunPaths, monkeypatch: pytest.MonkeyPatch
):
    session = start()
    monkeypatch.setattr(os, "write", lambda *_: 3)
    with pytest.raises(CheckpointError, match=r"only 3 of \d+ bytes fit"):
        session.report({})
    monkeypatch.undo()


def report_in_thread(session: Session) -> threading.Thread:
    thread = threading.Thread(target=session.report, args=({},), daemon=True)
    thread.start()
    return thread


def test_a_frozen_rank_begins_no_report_until_it_knows_where_to_stop(
    start: Start, executor: FakeExecutor
):
    session = start(first_report=7)
    session.report({})
    assert session.freeze() == 8
    thread = report_in_thread(session)
    thread.join(0.05)
    assert thread.is_alive()
    assert session.reports == 8
    session.stop_after(9)
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert [report["report"] for report in executor.reports] == [8, 9]
    assert session.should_stop()


def test_a_rank_behind_goes_on_and_one_at_the_stop_leaves(start: Start):
    session = start()
    assert not session.should_stop()
    session.freeze()
    session.stop_after(2)
    assert not session.should_stop()
    session.report({})
    assert not session.should_stop()
    session.report({})
    assert session.should_stop()


def test_a_promise_that_is_lifted_stops_nobody(start: Start, executor: FakeExecutor):
    session = start()
    session.freeze()
    thread = report_in_thread(session)
    session.stop_after(None)
    thread.join(PATIENCE_S)
    assert len(executor.reports) == 1
    assert not session.should_stop()


def test_a_frozen_rank_does_not_wait_for_ever(start: Start):
    session = start(rank=1, commit_timeout_s=0.05)
    session.freeze()
    message = "rank 1 waited 0 s for the executor to say at which report to stop"
    with pytest.raises(CheckpointError, match=message):
        session.report({})


def test_a_checkpoint_that_waits_for_its_commit_can_be_frozen_meanwhile(
    start: Start, paths: RunPaths, executor: FakeExecutor, model: Path
):
    staged = threading.Event()

    def hold(number: int) -> None:
        staged.set()

    executor.decide = hold
    session = start()
    thread = threading.Thread(target=session.report, args=({}, Checkpoint(model)), daemon=True)
    thread.start()
    assert staged.wait(PATIENCE_S)
    assert session.freeze() == 1
    session.decide(1, commit_to(paths.checkpoints)(1))
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    session.stop_after(1)
    assert session.should_stop()
