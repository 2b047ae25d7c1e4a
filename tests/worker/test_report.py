from __future__ import annotations

import json
import os
import resource
import shutil
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy
import pytest

from hpctrain.bulk.state_file import Chunk, StateFile
from hpctrain.checkpoint import Checkpoint, CheckpointUploadMode, ReportedCheckpoint
from hpctrain.checkpoint_files import MANIFEST_NAME
from hpctrain.errors import CheckpointError, ConfigError
from hpctrain.rundir.bulk import clone
from hpctrain.rundir.metrics import read_reports
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.shared_staging import SharedStaging
from hpctrain.rundir.staging import StagedFile, StagedPart
from hpctrain.worker import collective_count
from hpctrain.worker.commits import MAX_IN_FLIGHT, CommitOutcome
from hpctrain.worker.metrics import encode_metrics
from hpctrain.worker.report import Session
from hpctrain.worker.report_count import LeaveTraining
from hpctrain.worker.upload import Background, Upload
from tests.waiting import wait_until
from tests.worlds import make_world

PATIENCE_S = 10.0


class FakeExecutor:
    """The other end of a session: keeps what was said, and decides on checkpoints at once."""

    def __init__(self) -> None:
        self.session: Session | None = None
        self.reports: list[dict[str, Any]] = []
        self.staged: dict[int, list[StagedFile]] = {}
        self.parts: dict[int, StagedPart] = {}
        self.found: list[tuple[str, dict[str, Any]]] = []
        self.signs: list[str] = []
        self.waits: list[Any] = []
        self.slots: list[tuple[int, bool]] = []
        self.decide: Callable[[int], CommitOutcome | None] = lambda number: None

    def report(self, line: bytes) -> None:
        assert line.endswith(b"\n")
        self.reports.append(json.loads(line))

    def announce(self, line: bytes) -> None:
        self.report(line)

    def part(self, report: int, part: bytes) -> None:
        self.parts[report] = StagedPart.from_bytes(part)
        self.staged[report] = list(self.parts[report].files)
        outcome = self.decide(report)
        if outcome is not None:
            assert self.session is not None
            self.session.decide(report, outcome)

    def ask(self, report: int) -> None:
        assert self.session is not None
        self.session.receive_checkpoints(report, self.found)

    def slot(self, number: int, wanted: bool) -> None:
        self.slots.append((number, wanted))
        if wanted:
            assert self.session is not None
            self.session.writing.begin(number)

    def progress(self, op: str, **details: str | int) -> None:
        self.signs.append(str(details.get("phase", op)))
        if op == "waits":
            self.waits.append(details["collective"])


Start = Callable[..., Session]


def part_of(
    directory: Path,
    mode: CheckpointUploadMode = CheckpointUploadMode.SYNC,
    *,
    dir_name: str | None = None,
    delete_local: bool = False,
    upload_fn: Callable[[Checkpoint, str], Checkpoint] | None = None,
) -> Upload:
    return Upload(
        checkpoint=Checkpoint(directory),
        dir_name=dir_name,
        mode=mode,
        delete_local=delete_local,
        upload_fn=upload_fn,
    )


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
        session = Session(
            world=make_world(rank, 4, attempt=attempt),
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


def test_a_frame_and_other_objects_are_refused_with_what_to_do():
    pandas = pytest.importorskip("pandas")
    for value in (pandas.DataFrame({"a": [1]}), pandas.Series([1])):
        with pytest.raises(ConfigError, match=r"of type pandas\..*: use \.to_dict\(\)"):
            encode_metrics({"table": value})
    with pytest.raises(ConfigError, match=r"of type builtins\.set\. .*: save it in the dir"):
        encode_metrics({"seen": {1}})


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


def commit_to(directory: Path) -> Callable[[int], CommitOutcome]:
    def decide(number: int) -> CommitOutcome:
        target = directory / f"{number:06d}"
        target.mkdir()
        return CommitOutcome(str(target), None)

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
    session.report({"loss": 0.5}, part_of(model))
    assert [file.path for file in executor.staged[5]] == ["model.bin"]
    staged = paths.checkpoints / ".tmp-1-000005" / "all" / "model.bin"
    assert staged.read_bytes() == (model / "model.bin").read_bytes() == b"weights"
    assert session.checkpoint == Checkpoint(paths.checkpoints / "000005")
    assert read_reports(paths)[-1]["checkpoint"] == "000005"


def test_a_directory_inside_the_commit_is_taken_without_a_copy(
    start: Start, paths: RunPaths, executor: FakeExecutor, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: object) -> None:
        raise AssertionError("copied")

    monkeypatch.setattr(SharedStaging, "copy", refuse)
    executor.decide = commit_to(paths.checkpoints)
    session = start()
    directory = session.staging()
    (directory / "model.bin").write_bytes(b"weights")
    session.report({}, part_of(directory))
    assert [file.path for file in executor.staged[1]] == ["model.bin"]


def test_what_was_saved_for_a_report_that_was_never_made_is_in_no_checkpoint(
    start: Start, paths: RunPaths, executor: FakeExecutor, model: Path
):
    executor.decide = commit_to(paths.checkpoints)
    session = start()
    (session.staging() / "half-written.bin").write_bytes(b"half")
    assert list(session.staging().iterdir()) == []
    (session.staging() / "half-written.bin").write_bytes(b"half")
    session.report({}, part_of(model))
    assert [file.path for file in executor.staged[1]] == ["model.bin"]


@pytest.mark.parametrize("in_scratch", [False, True])
def test_a_directory_whose_report_has_no_checkpoint_makes_room_for_the_next_one(
    start: Start, tmp_path: Path, in_scratch: bool
):
    session = start()
    if in_scratch:
        (tmp_path / "nvme").mkdir()
        session.parts.use_scratch(tmp_path / "nvme", artifacts=False)
    given = []
    for report in range(1, 4):
        given.append(session.staging())
        (given[-1] / "model.bin").write_bytes(b"weights")
        session.report({"n": report})
        assert [directory.exists() for directory in given] == [False] * (report - 1) + [True]


@pytest.mark.parametrize("below", ["", "sub"])
def test_a_directory_that_is_still_being_reported_is_left_alone(
    start: Start, paths: RunPaths, executor: FakeExecutor, tmp_path: Path, below: str
):
    """Also one that is named by another path to it, or reported in part."""
    (tmp_path / "linked").symlink_to(paths.root)
    session = start()
    directory = session.staging()
    (directory / "sub").mkdir()
    (directory / "sub/model.bin").write_bytes(b"weights")
    session.report({})
    source = tmp_path / "linked" / directory.relative_to(paths.root) / below
    session.report({}, part_of(source, CheckpointUploadMode.ASYNC))
    assert session.staging() != directory
    assert (directory / "sub/model.bin").exists()


def test_a_committed_checkpoint_can_be_reported_again_without_its_manifest(
    start: Start, paths: RunPaths, executor: FakeExecutor, model: Path
):
    (model / MANIFEST_NAME).write_text("of another commit")
    executor.decide = commit_to(paths.checkpoints)
    start().report({}, part_of(model))
    assert [file.path for file in executor.staged[1]] == ["model.bin"]


@pytest.mark.parametrize("in_staging", [True, False])
def test_a_rank_with_nothing_to_save_gives_an_empty_part_without_the_preprocessor(
    start: Start, paths: RunPaths, executor: FakeExecutor, tmp_path: Path, in_staging: bool
):
    executor.decide = commit_to(paths.checkpoints)
    session = start(rank=2)
    session.parts.beside.append({"preprocessor.json": b"{}"})
    (tmp_path / "empty").mkdir()
    session.report({}, part_of(session.staging() if in_staging else tmp_path / "empty"))
    assert executor.staged[1] == []
    assert session.checkpoint is not None


def test_a_commit_that_failed_is_told_with_its_reason(
    start: Start, paths: RunPaths, executor: FakeExecutor, model: Path
):
    executor.decide = lambda number: CommitOutcome(None, "Permission denied (/x)")
    session = start(first_report=2)
    message = r"checkpoint of report 3 was not committed: Permission denied \(/x\)"
    with pytest.raises(CheckpointError, match=message):
        session.report({}, part_of(model))
    assert session.checkpoint is None
    # The metrics were reported; that the checkpoint is not there is said by the checkpoints.
    assert [report["report"] for report in read_reports(paths)] == [3]


def test_a_rank_that_waits_in_vain_for_a_commit_says_what_is_missing(start: Start, model: Path):
    message = (
        r"rank 2 waited 0\.05 s in report 1 for its checkpoint: a rank has not made this report or "
        r"still writes its part of the checkpoint, or the executor still commits it\. "
        r"SyncConfig\(sync_timeout=\.\.\.\) sets how long to wait"
    )
    with pytest.raises(CheckpointError, match=message):
        start(rank=2, commit_timeout_s=0.05).report({}, part_of(model))


def full_disk(*_: object, **__: object) -> int:
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
        session.report({}, part_of(model))
    assert isinstance(raised.value.__cause__, OSError)


def test_who_cannot_write_its_part_has_made_its_report_and_can_go_on(
    start: Start, executor: FakeExecutor, paths: RunPaths, model: Path
):
    session = start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", full_disk)
        with pytest.raises(CheckpointError, match="No space left"):
            session.report({}, part_of(model))
    # The executor hears of it, and with it the other ranks.
    assert executor.parts[1].files == ()
    assert "rank 0 could not write its part" in str(executor.parts[1].error)
    executor.decide = commit_to(paths.checkpoints)
    session.report({}, part_of(model))
    assert executor.parts[2].error is None
    assert [report["report"] for report in read_reports(paths)] == [1, 2]
    session.drain()


def test_of_a_long_error_the_other_ranks_get_both_ends(
    start: Start, executor: FakeExecutor, model: Path
):
    def upload(checkpoint: Checkpoint, storage: str) -> Checkpoint:
        raise RuntimeError("begin" + "x" * 3_000_000 + "end")

    with pytest.raises(RuntimeError):
        start(rank=1).report({}, part_of(model, upload_fn=upload))
    reason = str(executor.parts[1].error)
    assert reason.startswith("rank 1: RuntimeError: begin")
    assert reason.endswith("end")
    assert len(reason) < 100_000


class Writer:
    """Writes a file; of a part that is given up it is told."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.calls: list[str] = []
        self.discarded = threading.Event()

    def capture(self) -> None:
        self.calls.append("capture")

    def write(self) -> list[StagedFile]:
        assert list(self.directory.iterdir()) == []
        (self.directory / "model.bin").write_bytes(b"weights")
        self.calls.append("write")
        return [StagedFile("model.bin", 7, "of what it wrote")]

    def discard(self) -> None:
        self.calls.append("discard")
        self.discarded.set()


def test_a_writer_makes_the_checkpoint_where_it_is_committed(
    start: Start, paths: RunPaths, executor: FakeExecutor
):
    executor.decide = commit_to(paths.checkpoints)
    session = start()
    (session.staging() / "of-a-report-that-was-never-made.bin").write_bytes(b"half")
    mode = CheckpointUploadMode.SYNC
    with session.shared_staging() as directory:
        writer = Writer(directory)
        session.report({}, Upload(checkpoint=None, dir_name=None, mode=mode, writer=writer))
    assert [file.path for file in executor.staged[1]] == ["model.bin"]
    assert writer.calls == ["write"]


def test_a_writer_whose_turn_does_not_come_lets_go_of_what_it_kept(
    start: Start, executor: FakeExecutor, paths: RunPaths, monkeypatch: pytest.MonkeyPatch
):
    executor.decide = commit_to(paths.checkpoints)
    monkeypatch.setattr(executor, "slot", lambda *_: None)
    session = start(commit_timeout_s=1.0)
    session.writing.limit(max_writers=1, max_bytes_per_s=None)
    mode = CheckpointUploadMode.ASYNC
    with session.shared_staging() as directory:
        writer = Writer(directory)
        session.report({}, Upload(checkpoint=None, dir_name=None, mode=mode, writer=writer))
    assert writer.discarded.wait(PATIENCE_S)
    with pytest.raises(CheckpointError, match="for a slot to write"):
        session.drain()
    assert writer.calls == ["capture", "discard"]


def test_a_directory_that_cannot_be_made_is_told_to_the_others_and_the_report_counts(
    start: Start, executor: FakeExecutor, paths: RunPaths, monkeypatch: pytest.MonkeyPatch
):
    session = start()
    monkeypatch.setattr(Path, "mkdir", full_disk)
    mode = CheckpointUploadMode.SYNC
    with session.shared_staging() as directory:
        writer = Writer(directory)
        upload = Upload(checkpoint=None, dir_name=None, mode=mode, writer=writer)
        with pytest.raises(CheckpointError, match=r"report 1 to .*: No space left on device"):
            session.report({}, upload)
    assert session.reports == 1
    assert "No space left on device" in str(executor.parts[1].error)
    assert writer.calls == ["discard"]


def test_of_a_report_that_is_not_made_no_directory_stays(start: Start, paths: RunPaths):
    session = start()
    with session.shared_staging() as made:
        assert made.is_dir()
        upload = Upload(
            checkpoint=None, dir_name=None, mode=CheckpointUploadMode.SYNC, writer=Writer(made)
        )
        with pytest.raises(ConfigError, match="Metrics are numbers"):
            session.report({"loss": [object()]}, upload)
    assert list(paths.checkpoints.iterdir()) == []


def test_of_all_ranks_only_the_first_makes_the_directory_of_a_state(start: Start, paths: RunPaths):
    with start(rank=1).shared_staging() as directory:
        assert not directory.parent.exists()


def test_a_rank_writes_in_its_turn_and_asks_for_none_where_all_may_write(
    start: Start, executor: FakeExecutor, paths: RunPaths, model: Path
):
    executor.decide = commit_to(paths.checkpoints)
    session = start()
    session.report({}, part_of(model))
    assert executor.slots == []
    session.writing.limit(max_writers=1, max_bytes_per_s=None)
    session.report({}, part_of(model))
    session.report({}, part_of(model, ASYNC))
    session.report({})
    session.drain()
    assert executor.slots == [(1, True), (1, False), (2, True), (2, False)]


def test_a_full_disk_under_the_metrics_is_told_with_the_file_and_the_report_counts(
    start: Start, paths: RunPaths, executor: FakeExecutor, monkeypatch: pytest.MonkeyPatch
):
    session = start()
    monkeypatch.setattr(os, "write", full_disk)
    message = rf"report 1 could not be written to {paths.metrics}: No space left on device"
    with pytest.raises(CheckpointError, match=message):
        session.report({"loss": 1.0})
    monkeypatch.undo()
    session.report({"loss": 0.5})
    assert [(one["report"], one["metrics"]["loss"]) for one in executor.reports] == [
        (1, 1.0),
        (2, 0.5),
    ]


@pytest.mark.parametrize("mode", [CheckpointUploadMode.SYNC, CheckpointUploadMode.ASYNC])
def test_who_cannot_write_its_metrics_gives_no_part_and_the_others_are_told(
    start: Start,
    paths: RunPaths,
    executor: FakeExecutor,
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: CheckpointUploadMode,
):
    executor.decide = lambda number: CommitOutcome(None, str(executor.parts[number].error))
    session = start()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "write", full_disk)
        with pytest.raises(CheckpointError, match="report 1 could not be written to"):
            session.report({}, part_of(model, mode))
    assert f"could not be written to {paths.metrics}" in str(executor.parts[1].error)
    executor.decide = commit_to(paths.checkpoints)
    session.report({}, part_of(model, mode))
    session.drain()
    assert [file.path for file in executor.staged[2]] == ["model.bin"]


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


def test_the_report_after_one_that_fits_only_in_part_is_a_line_of_its_own(
    start: Start, paths: RunPaths
):
    session = start()
    session.report({"loss": 1.0})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for number in (2, 3):
        room = paths.metrics.stat().st_size + 20
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
        try:
            with pytest.raises(CheckpointError, match=f"report {number} .* only 20 of"):
                session.report({"loss": 1.0})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    session.report({"loss": 1.0})
    session.report({"loss": 1.0})
    assert [report["report"] for report in read_reports(paths)] == [1, 4, 5]


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


def test_who_has_been_told_late_may_save_once_more_and_no_rank_is_unwound(start: Start):
    session = start()
    session.stop_after(1, unwind=False)
    for _ in range(4):
        session.report({})
    assert session.should_stop()
    session.report({})
    with pytest.raises(LeaveTraining):
        session.report({})
    assert session.reports == 5


def test_a_rank_that_was_let_go_on_ends_where_a_second_word_says(start: Start):
    session = start()
    session.stop_after(1, unwind=False)
    for _ in range(3):
        session.report({})
    leave = {"deadline": None, "nodes": {}}
    session.stop_after(4, leave)
    # As on a rank that hears of it later.
    assert session.leave is None
    session.report({})
    assert session.leave == leave
    with pytest.raises(LeaveTraining):
        session.report({})
    assert session.was_notified


def test_whoever_goes_back_stops_after_the_same_report_as_those_who_had_not_made_it(start: Start):
    session = start()
    leave = {"deadline": None, "nodes": {}}
    session.stop_after(2, leave)
    session.report({})
    session.report({})
    assert session.should_stop()
    session.report({})
    told = [session.should_stop_after(report) for report in (1, 2, 3)]
    assert told == [False, True, True]
    assert [session.leave_after(report) for report in (1, 2, 3)] == [None, leave, leave]


def test_the_first_word_of_where_to_stop_stands(start: Start):
    session = start()
    session.stop_after(1)
    session.report({})
    session.stop_after(3)
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
    thread = threading.Thread(target=session.report, args=({}, part_of(model)), daemon=True)
    thread.start()
    assert staged.wait(PATIENCE_S)
    assert session.freeze() == 1
    session.decide(1, commit_to(paths.checkpoints)(1))
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    session.stop_after(1)
    assert session.should_stop()


ASYNC = CheckpointUploadMode.ASYNC


class Gate:
    """An upload function that waits until it is let through."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.session: Session | None = None

    def __call__(self, checkpoint: Checkpoint, directory: str) -> Checkpoint:
        assert self.open.wait(PATIENCE_S)
        assert self.session is not None
        target = self.session._paths.root / directory
        (target / "model.bin").write_bytes((checkpoint.path / "model.bin").read_bytes())
        return Checkpoint(target)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open.set()


def test_an_async_report_returns_before_the_copy_and_the_metrics_go_on_ahead(
    start: Start, paths: RunPaths, executor: FakeExecutor, model: Path, gate: Gate
):
    executor.decide = commit_to(paths.checkpoints)
    gate.session = session = start()
    session.report({"loss": 1}, part_of(model, ASYNC, upload_fn=gate))
    session.report({"loss": 2})
    assert [(r["report"], r["checkpoint"]) for r in executor.reports] == [(1, "000001"), (2, None)]
    assert session.checkpoint is None
    gate.open.set()
    session.drain()
    assert executor.staged[1][0].path == "model.bin"
    assert session.checkpoint == Checkpoint(paths.checkpoints / "000001")


def test_async_checkpoints_are_staged_in_order_and_a_third_waits_for_the_first(
    start: Start, paths: RunPaths, executor: FakeExecutor, model: Path, gate: Gate
):
    gate.session = session = start()
    for _ in range(MAX_IN_FLIGHT):
        session.report({}, part_of(model, ASYNC, upload_fn=gate))
    thread = threading.Thread(target=session.report, args=({}, part_of(model, ASYNC)), daemon=True)
    thread.start()
    gate.open.set()
    wait_until(lambda: len(executor.staged) == MAX_IN_FLIGHT)
    thread.join(0.05)
    assert thread.is_alive()
    # It has not begun its report, so it can be told to stop before it.
    assert session.reports == MAX_IN_FLIGHT
    decide = commit_to(paths.checkpoints)
    session.decide(1, decide(1))
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    wait_until(lambda: len(executor.staged) == 3)
    session.decide(2, decide(2))
    session.decide(3, decide(3))
    session.drain()
    assert list(executor.staged) == [1, 2, 3]


@pytest.mark.parametrize("where", ["report", "drain", "all_checkpoints"])
def test_an_error_behind_the_training_function_is_raised_by_what_it_does_next(
    start: Start, model: Path, where: str
):
    def fail(checkpoint: Checkpoint, directory: str) -> Checkpoint:
        raise KeyError("no bucket")

    session = start()
    session.report({}, part_of(model, ASYNC, upload_fn=fail))
    wait_until(lambda: session._commits.failure is not None)
    with pytest.raises(KeyError, match="no bucket"):
        {
            "report": lambda: session.report({}),
            "drain": session.drain,
            "all_checkpoints": lambda: session.all_checkpoints(None),
        }[where]()
    # Told once; who goes on has made as many reports as the others.
    assert session.reports == (2 if where == "report" else 1)
    session.report({})
    session.drain()


def test_a_commit_that_failed_behind_is_raised_by_the_next_report(
    start: Start, executor: FakeExecutor, model: Path
):
    executor.decide = lambda number: CommitOutcome(None, "No space left on device (/x)")
    session = start()
    session.report({}, part_of(model, ASYNC))
    wait_until(lambda: session._commits.failure is not None)
    message = r"checkpoint of report 1 was not committed: No space left on device \(/x\)"
    with pytest.raises(CheckpointError, match=message):
        session.report({})
    session.report({})
    assert [report["report"] for report in executor.reports] == [1, 2, 3]


def test_a_source_that_vanished_before_its_copy_is_an_error(start: Start, model: Path):
    session = start()
    upload = part_of(model, ASYNC)
    shutil.rmtree(model)
    session.report({}, upload)
    with pytest.raises(CheckpointError, match=r"could not write its part .* of report 1"):
        session.drain()


def test_a_job_that_raises_keeps_none_behind_it_from_being_done():
    errors: list[BaseException] = []
    background = Background(threaded=True, on_error=errors.append)
    done = []

    def fail() -> None:
        raise CheckpointError("damaged")

    background.submit(fail)
    background.submit(lambda: done.append("next"))
    assert background.wait(PATIENCE_S)
    assert done == ["next"]
    assert [str(error) for error in errors] == ["damaged"]


def test_what_goes_wrong_behind_is_raised_by_the_next_report(
    start: Start, executor: FakeExecutor, model: Path, monkeypatch: pytest.MonkeyPatch
):
    def fail(checkpoint: Upload) -> None:
        raise ValueError("no such directory")

    monkeypatch.setattr(Upload, "delete_source", fail)
    executor.decide = lambda number: CommitOutcome(str(model), None)
    session = start()
    session.report({}, part_of(model, ASYNC))
    wait_until(lambda: session._commits.failure is not None)
    with pytest.raises(ValueError, match="no such directory"):
        session.report({})
    session.report({}, part_of(model, ASYNC))
    wait_until(lambda: 3 in executor.parts)


def test_artifacts_with_a_damaged_state_are_told_of_and_later_checkpoints_go_on(
    start: Start, executor: FakeExecutor, model: Path, tmp_path: Path
):
    session = start()
    (tmp_path / "nvme").mkdir()
    session.parts.use_scratch(tmp_path / "nvme", artifacts=True)
    layout = StateFile.plan([Chunk(name="a", dtype="U8", shape=(9,), offsets=(0,))])
    state = session.artifacts() / "state.safetensors"
    state.write_bytes(layout.header(["0" * 16]) + bytes(9))
    session.report({}, part_of(model, ASYNC))
    wait_until(lambda: session._commits.failure is not None)
    message = r"rank 0 could not copy its artifacts to .*: .*state\.safetensors is damaged.*node\.$"
    with pytest.raises(CheckpointError, match=message):
        session.report({})
    state.unlink()
    session.report({}, part_of(model, ASYNC))
    wait_until(lambda: 3 in executor.parts)
    session.close()


def test_what_is_under_way_for_too_long_says_what_it_waits_for(
    start: Start, executor: FakeExecutor, model: Path
):
    session = start(rank=2, commit_timeout_s=0.05)
    session.report({}, part_of(model, ASYNC))
    wait_until(lambda: 1 in executor.parts)
    message = r"rank 2: the checkpoint of report 1 is not committed after .*: a rank has not made"
    with pytest.raises(CheckpointError, match=message):
        session.drain()


def test_without_a_thread_an_async_report_is_done_at_once(
    paths: RunPaths, executor: FakeExecutor, model: Path
):
    executor.decide = commit_to(paths.checkpoints)
    session = Session(
        world=make_world(),
        paths=paths,
        channel=executor,
        first_report=0,
        checkpoint=None,
        commit_timeout_s=PATIENCE_S,
        in_background=False,
    )
    executor.session = session
    session.report({}, part_of(model, ASYNC))
    assert session.checkpoint is not None
    session.close()


def test_without_upload_the_files_have_a_second_name_and_no_second_copy(
    start: Start, paths: RunPaths, executor: FakeExecutor, model: Path
):
    executor.decide = commit_to(paths.checkpoints)
    start().report({}, part_of(model, CheckpointUploadMode.NO_UPLOAD))
    staged = paths.checkpoints / ".tmp-1-000001" / "all" / "model.bin"
    assert staged.read_bytes() == b"weights"
    # The filesystem of the tests has no reflinks, or there would be two inodes.
    assert clone_works(paths.root) or staged.samefile(model / "model.bin")


def clone_works(directory: Path) -> bool:
    (directory / "source").write_bytes(b"x")
    return clone(directory / "source", directory / "target")


def test_without_upload_a_directory_on_another_filesystem_is_refused(start: Start):
    directory = Path(tempfile.mkdtemp(dir="/dev/shm"))
    (directory / "model.bin").write_bytes(b"weights")
    try:
        with pytest.raises(CheckpointError, match=r"without a copy: Invalid cross-device link"):
            start().report({}, part_of(directory, CheckpointUploadMode.NO_UPLOAD))
    finally:
        shutil.rmtree(directory)


@pytest.mark.parametrize("mode", CheckpointUploadMode)
def test_the_callers_directory_is_deleted_only_if_that_was_asked_for_and_after_the_commit(
    start: Start, paths: RunPaths, executor: FakeExecutor, model: Path, mode: CheckpointUploadMode
):
    there: list[bool] = []
    commit = commit_to(paths.checkpoints)

    def decide(number: int) -> CommitOutcome:
        there.append(model.exists())
        return commit(number)

    executor.decide = decide
    session = start()
    session.report({}, part_of(model, mode))
    session.report({}, part_of(model, mode, delete_local=True))
    session.drain()
    assert there == [True, True]
    assert not model.exists()


def test_the_callers_directory_stays_if_its_checkpoint_was_not_committed(
    start: Start, executor: FakeExecutor, model: Path
):
    executor.decide = lambda number: CommitOutcome(None, "full")
    with pytest.raises(CheckpointError):
        start().report({}, part_of(model, delete_local=True))
    assert model.exists()


@pytest.mark.parametrize("mode", CheckpointUploadMode)
def test_a_directory_that_the_run_is_in_is_not_copied_into_itself(
    start: Start, paths: RunPaths, executor: FakeExecutor, mode: CheckpointUploadMode
):
    (paths.root.parent / "model.bin").write_bytes(b"weights")
    session = start()
    for directory in (paths.root.parent, paths.root, paths.checkpoints):
        with pytest.raises(ConfigError, match=rf"{directory} holds committed checkpoints of this"):
            session.report({}, part_of(directory, mode))
    assert (session.reports, list(paths.checkpoints.iterdir())) == (0, [])


def test_a_function_of_the_callers_may_copy_from_a_directory_that_the_run_is_in(
    start: Start, paths: RunPaths, executor: FakeExecutor
):
    (paths.root.parent / "model.bin").write_bytes(b"weights")

    def copy(checkpoint: Checkpoint, directory: str) -> Checkpoint:
        shutil.copy(checkpoint.path / "model.bin", paths.root / directory)
        return Checkpoint(paths.root / directory)

    executor.decide = commit_to(paths.checkpoints)
    start().report({}, part_of(paths.root.parent, upload_fn=copy))
    assert [file.path for file in executor.staged[1]] == ["model.bin"]


def test_committed_checkpoints_and_what_holds_them_are_not_deleted_as_somebodys_own(
    start: Start, paths: RunPaths
):
    part = paths.checkpoints / "000001" / "part"
    part.mkdir(parents=True)
    session = start()
    for directory in (part, part.parent, paths.checkpoints, paths.root):
        with pytest.raises(ConfigError, match="holds committed checkpoints"):
            session.report({}, part_of(directory, delete_local=True))
    assert session.reports == 0


def test_a_name_goes_with_the_part_and_into_the_metrics(
    start: Start, paths: RunPaths, executor: FakeExecutor, model: Path
):
    executor.decide = commit_to(paths.checkpoints)
    start().report({}, part_of(model, dir_name="best"))
    assert executor.parts[1].name == "best"
    assert read_reports(paths)[-1]["checkpoint"] == "best"
    assert set(executor.parts[1].versions) >= {"hpctrain", "python"}


def test_an_impossible_name_is_refused_before_the_report_counts(start: Start, model: Path):
    session = start()
    with pytest.raises(ConfigError, match=r"checkpoint_dir_name='\.\./x'\): a checkpoint is a dir"):
        session.report({}, part_of(model, dir_name="../x"))
    with pytest.raises(ConfigError, match=r"a number is the name of the checkpoint of that report"):
        session.report({}, part_of(model, dir_name="000002"))
    assert session.reports == 0


def test_a_checkpoint_that_does_not_exist_is_refused_before_the_report_counts(
    start: Start, paths: RunPaths, model: Path
):
    session = start()
    for mode in CheckpointUploadMode:
        with pytest.raises(ConfigError, match=r"Checkpoint\('.*nowhere'\) does not exist"):
            session.report({}, part_of(model / "nowhere", mode))
    assert session.reports == 0
    with pytest.raises(ConfigError, match=r"nowhere'\) does not exist"):
        session.report({}, part_of(model, upload_fn=lambda *_: Checkpoint(paths.root / "nowhere")))


def test_an_upload_function_has_to_stay_inside_of_the_run(start: Start, model: Path):
    with pytest.raises(ConfigError, match=r"returned Checkpoint\(.*It returns a Checkpoint inside"):
        start().report({}, part_of(model, upload_fn=lambda checkpoint, _: checkpoint))


def test_what_an_upload_function_wrote_elsewhere_in_the_run_is_linked(
    start: Start, paths: RunPaths, executor: FakeExecutor, model: Path
):
    def upload(checkpoint: Checkpoint, directory: str) -> Checkpoint:
        return Checkpoint(checkpoint.to_directory(paths.root / "elsewhere"))

    executor.decide = commit_to(paths.checkpoints)
    start().report({}, part_of(model, upload_fn=upload))
    assert [file.path for file in executor.staged[1]] == ["model.bin"]


def test_news_of_others_checkpoints_is_news_and_never_goes_back(
    start: Start, paths: RunPaths, executor: FakeExecutor
):
    session = start(rank=1)
    decide = commit_to(paths.checkpoints)
    session.decide(2, decide(2))
    session.decide(1, decide(1))
    assert session.checkpoint == Checkpoint(paths.checkpoints / "000002")
    assert session._commits._outcomes == {}


def test_a_checkpoint_that_is_not_kept_any_more_makes_way_for_the_newer_one(
    start: Start, paths: RunPaths
):
    session = start()
    decide = commit_to(paths.checkpoints)
    session.decide(1, decide(1))
    (paths.checkpoints / "000001").rmdir()
    news = threading.Timer(0.05, lambda: session.decide(2, decide(2)))
    news.start()
    assert session.checkpoint == Checkpoint(paths.checkpoints / "000002")
    news.join()


def test_all_checkpoints_come_from_the_executor_with_their_metrics(
    start: Start, executor: FakeExecutor, model: Path
):
    executor.found = [(str(model), {"loss": 0.5})]
    (found,) = start().all_checkpoints(None)
    assert found == ReportedCheckpoint(checkpoint=Checkpoint(model), metrics={"loss": 0.5})


def test_who_asks_for_checkpoints_in_vain_is_told_why(start: Start, executor: FakeExecutor):
    executor.ask = lambda report: None  # type: ignore[method-assign]
    with pytest.raises(
        CheckpointError,
        match=r"waited 0\.05 s for the checkpoints up to report 0: a .*sync_timeout=\.\.\.\) sets",
    ):
        start().all_checkpoints(0.05)


def test_a_checkpoint_is_a_phase_and_heartbeats_are_sent_once_a_second(
    start: Start, executor: FakeExecutor, model: Path, monkeypatch: pytest.MonkeyPatch
):
    session = start()
    executor.decide = lambda number: CommitOutcome(None, "the disk is full")
    with pytest.raises(CheckpointError):
        session.report({}, part_of(model))
    assert executor.signs == ["checkpoint", "training"]
    clock = iter([10.0, 10.5, 11.1])
    monkeypatch.setattr("hpctrain.worker.report.time.monotonic", lambda: next(clock))
    for _ in range(3):
        session.heartbeat()
    assert executor.signs[2:] == ["heartbeat", "heartbeat"]


def test_only_a_long_wait_for_all_ranks_is_told_and_that_it_is_over(
    start: Start, executor: FakeExecutor, monkeypatch: pytest.MonkeyPatch
):
    session = start()
    with session.collective("barrier()") as waits:
        waits()
    assert executor.signs == []
    monkeypatch.setattr(collective_count, "_LONG_WAIT_S", -1.0)
    with session.collective("barrier()") as waits:
        waits()
        waits()
        assert executor.waits == [2]
    assert executor.waits == [2, 0]


def test_threads_that_report_take_turns(start: Start, executor: FakeExecutor) -> None:
    session = start()
    others: list[threading.Thread] = []

    def report_meanwhile(line: bytes) -> None:
        executor.reports.append(json.loads(line))
        if not others:
            others.append(threading.Thread(target=session.report, args=({"loss": 2.0},)))
            others[0].start()
            # Of one that takes no turns the report is made meanwhile.
            others[0].join(0.5)
            assert session.reports == 1

    executor.report = report_meanwhile  # type: ignore[method-assign]
    session.report({"loss": 1.0})
    others[0].join(PATIENCE_S)
    assert [(each["report"], each["metrics"]["loss"]) for each in executor.reports] == [
        (1, 1.0),
        (2, 2.0),
    ]
