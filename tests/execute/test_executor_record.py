from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpctrain.execute import executor_record
from hpctrain.execute.executor_record import ExecutorRecord
from hpctrain.result import Result
from hpctrain.rundir.attempts import read_attempts
from hpctrain.rundir.history import FailureKind
from hpctrain.rundir.ledger import append_event, read_events
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.run_record import RunRecord
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus, read_status, write_status
from hpctrain.tune.attempt_clock import AttemptClock
from tests.waiting import wait_until


@pytest.fixture
def run_record(tmp_path: Path) -> ExecutorRecord:
    status = RunStatus(name="run", state=RunState.RUNNING, launcher="local", job_id="7")
    return ExecutorRecord(RunPaths(tmp_path), status)


def test_a_full_disk_does_not_end_the_bookkeeping(
    run_record: ExecutorRecord, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def full_disk(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RunRecord, "write", full_disk)
    monkeypatch.setattr(RunRecord, "append", full_disk)
    run_record.change(reports=3)
    run_record.note("attempt-started", attempt=1, first_report=0)
    assert run_record.status.reports == 3
    assert run_record.last_attempt == 1
    said = capsys.readouterr().err
    assert f"cannot write status.json in {run_record.paths.root}: No space left on device" in said
    assert f"cannot write ledger.jsonl in {run_record.paths.root}: No space left on device" in said


def test_events_for_which_there_was_no_room_are_written_before_the_next_one(
    run_record: ExecutorRecord, monkeypatch: pytest.MonkeyPatch
):
    append = RunRecord.append
    room = iter([False, False, True, True, True])

    def small_disk(*args: Any, **details: Any) -> None:
        if not next(room):
            raise OSError(28, "No space left on device")
        append(*args, **details)

    monkeypatch.setattr(RunRecord, "append", small_disk)
    for attempt in (1, 2, 3):
        run_record.note("restart", reason=attempt)
    written = read_events(run_record.paths)
    assert [event["reason"] for event in written] == [1, 2, 3]
    assert [event["time"] for event in written] == [e["time"] for e in run_record._events]


def test_the_last_word_waits_for_room(run_record: ExecutorRecord, monkeypatch: pytest.MonkeyPatch):
    write = RunRecord.write
    room = iter([False, True])

    def small_disk(*args: Any) -> RunStatus:
        if not next(room):
            raise OSError(28, "No space left on device")
        return write(*args)

    monkeypatch.setattr(RunRecord, "write", small_disk)
    run_record.change(patience_s=60.0, state=RunState.FINISHED)
    written = read_status(run_record.paths)
    assert written is not None
    assert written.state is RunState.FINISHED


def wait_until_newer(paths: RunPaths, than: RunStatus) -> RunStatus:
    def newer() -> RunStatus | None:
        written = read_status(paths)
        return written if written is not None and written.updated_at > than.updated_at else None

    written = wait_until(newer, "a newer status", timeout_s=10)
    assert written is not None
    return written


def test_the_status_shows_life_until_another_executor_may_write_it(
    run_record: ExecutorRecord, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(executor_record, "_LIFE_INTERVAL_S", 0.01)
    run_record.change(phase="launch")
    with run_record.kept_alive():
        written = run_record.status
        for _ in range(3):
            written = wait_until_newer(run_record.paths, written)
        assert written.phase == "launch"
        run_record.change(state=RunState.SUBMITTED)
        successor = write_status(run_record.paths, run_record.status.with_changes(job_id="8"))
        # As long as ten signs of life.
        time.sleep(0.1)
    assert read_status(run_record.paths) == successor


def test_no_change_is_lost_to_a_write_of_the_sign_of_life(
    run_record: ExecutorRecord, monkeypatch: pytest.MonkeyPatch
):
    begun, may_end = threading.Event(), threading.Event()
    write = RunRecord.write

    def slow_disk(*args: Any) -> RunStatus:
        written = write(*args)
        begun.set()
        assert may_end.wait(30)
        return written

    monkeypatch.setattr(executor_record, "_LIFE_INTERVAL_S", 0.01)
    monkeypatch.setattr(RunRecord, "write", slow_disk)
    with run_record.kept_alive():
        assert begun.wait(30)
        # Nobody waits for the disk.
        run_record.change_later(deadline=2000.0, reports=3)
        may_end.set()
    assert (run_record.status.deadline, run_record.status.reports) == (2000.0, 3)
    run_record.change(phase="training")
    written = read_status(run_record.paths)
    assert written is not None
    assert (written.deadline, written.reports) == (2000.0, 3)
    assert written == run_record.status


def test_what_is_changed_for_later_is_written_with_the_next_change(run_record: ExecutorRecord):
    run_record.change(reports=1)
    run_record.change_later(checkpoint="000001")
    written = read_status(run_record.paths)
    assert written is not None
    assert written.checkpoint is None
    run_record.change(reports=2)
    written = read_status(run_record.paths)
    assert written is not None
    assert (written.checkpoint, written.reports) == ("000001", 2)


@pytest.mark.parametrize(
    ("job_id", "kind"), [("7", FailureKind.START), ("6", FailureKind.PREEMPTION)]
)
def test_an_attempt_without_an_end_gets_one_of_its_kind(
    run_record: ExecutorRecord, job_id: str, kind: FailureKind
):
    run_record.note(
        "attempt-started", attempt=1, job_id=job_id, restarts=0, host="n1", first_report=0
    )
    dead = run_record.close_dead_attempts(saved=4)
    assert dead is not None
    assert dead[1] is kind
    ended = read_events(run_record.paths)[-1]
    assert (ended["event"], ended["kind"], ended["saved"]) == ("attempt-ended", kind.value, 4)
    assert run_record.history.failures == {kind: 1}
    assert run_record.close_dead_attempts(saved=4) is None


def test_an_attempt_whose_executor_died_lasted_until_the_last_sign_of_it(tmp_path: Path):
    paths = RunPaths(tmp_path)
    append_event(paths, "executor-started", job_id="7", restarts=0, time=100.0)
    append_event(paths, "attempt-started", attempt=1, job_id="7", restarts=0, time=110.0)
    status = RunStatus(
        name="run",
        state=RunState.RUNNING,
        launcher="slurm",
        job_id="7",
        attempt=1,
        started_at=100.0,
    )
    write_status(paths, status.placed_in(tmp_path))
    written = json.loads(paths.status.read_text())
    paths.status.write_text(json.dumps({**written, "updated_at": 150.0}))
    # The job is queued for hours, and begins again.
    run_record = ExecutorRecord(paths, replace(status, restarts=1))
    run_record.begin()
    run_record.close_dead_attempts(saved=0)
    assert run_record.attempt_seconds == 40.0
    assert AttemptClock(paths=paths).seconds_until(1007.0, attempt=2) == 40.0
    (attempt,) = Result.from_path(tmp_path).attempts
    assert attempt.ended_at == 150.0
    _, (shown,) = read_attempts(read_events(paths))
    assert shown.ended_at == 150.0


def test_an_attempt_of_which_there_was_no_sign_lasted_no_time(tmp_path: Path):
    paths = RunPaths(tmp_path)
    append_event(paths, "executor-started", job_id="7", time=100.0)
    append_event(paths, "attempt-started", attempt=1, time=110.0)
    append_event(paths, "executor-ended", until=105.0, time=5000.0)
    append_event(paths, "fit", time=5000.0)
    status = RunStatus(name="run", state=RunState.RUNNING, launcher="local")
    run_record = ExecutorRecord(paths, status)
    run_record.close_dead_attempts(saved=0)
    assert run_record.attempt_seconds == 0.0


def test_fields_that_a_damaged_ledger_lacks_are_unknown(tmp_path: Path):
    paths = RunPaths(tmp_path)
    append_event(paths, "attempt-started", attempt=1)
    status = RunStatus(name="run", state=RunState.RUNNING, launcher="local", job_id="7")
    run_record = ExecutorRecord(paths, status)
    assert run_record.begun_with == set()
    assert run_record.close_dead_attempts(0) == ("the executor on ? died", FailureKind.START)
