from __future__ import annotations

import builtins
import errno
import io
import json
import threading
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpctrain.bulk.unreadable import UnreadableError
from hpctrain.callback import RunContext, UserCallback
from hpctrain.checkpoint import Checkpoint
from hpctrain.config import CheckpointConfig, RunConfig, SyncConfig
from hpctrain.control.wire import Frame
from hpctrain.errors import (
    CheckpointError,
    ConfigError,
    LaunchError,
    NodeLostError,
    RunStoppedError,
    WorkerError,
)
from hpctrain.execute import executor_record, run_checkpoints
from hpctrain.execute.recorder import Recorder
from hpctrain.execute.stop_decision import StopKind, StopNotice
from hpctrain.execute.tracker import AttemptTracker, ReportRound
from hpctrain.execute.tuner_socket import ExecutorEnd, TunerEnd, make_pair
from hpctrain.result import Result
from hpctrain.rundir.ledger import read_events
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.run_record import RunRecord
from hpctrain.rundir.staging import StagedPart, seal, staging_directory
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus, last_attempt, read_status
from hpctrain.rundir.store import CheckpointStore
from tests.execute.conftest import SlowDisk
from tests.waiting import wait_until


class Calls(UserCallback):
    """A callback that takes note of how it was called."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def after_report(self, run_context: RunContext, metrics: Any, checkpoint: Any) -> None:
        self.calls.append(("after_report", run_context, metrics, checkpoint))

    def after_exception(self, run_context: RunContext, worker_exceptions: Any) -> None:
        self.calls.append(("after_exception", run_context, worker_exceptions))

    def on_finish(self, run_context: RunContext, result: Result) -> None:
        self.calls.append(("on_finish", run_context, result))


class Broken(UserCallback):
    """A callback that raises."""

    def after_report(self, run_context: RunContext, metrics: Any, checkpoint: Any) -> None:
        raise ValueError("no such server")


class FatallyBroken(Broken):
    """A callback without which the run is worth nothing."""

    fatal = True


class FakeTuner:
    """A tuner that decides at once."""

    decides = True

    def __init__(self) -> None:
        self.reported: list[tuple[int, int]] = []

    def send_reported(self, moment: tuple[int, int]) -> bool:
        self.reported.append(moment)
        return True

    def decided_on(self, attempt: int) -> int:
        return self.reported[-1][1]


class Broadcasts(list[tuple[str, dict[str, Any]]]):
    """What would be sent to all ranks."""

    def __call__(self, op: str, body: bytes = b"", **details: Any) -> None:
        self.append((op, {**details, "body": body} if body else details))


@pytest.fixture
def broadcasts() -> Broadcasts:
    return Broadcasts()


def make_recorder(paths: RunPaths, **config: Any) -> Recorder:
    status = RunStatus(name="run", state=RunState.RUNNING, launcher="local", world_size=2)
    recorder = Recorder(paths=paths, run_config=RunConfig(**config), status=status)
    recorder.run_record.change(attempt=1)
    return recorder


def make_round(
    number: int,
    metrics: Mapping[str, Any] | None = None,
    *,
    paths: RunPaths | None = None,
    attempt: int = 1,
) -> ReportRound:
    """Return a report of two ranks; with `paths`, rank 1 has staged a checkpoint with it."""
    lines = {
        rank: json.dumps({"metrics": {"rank": rank, **(metrics or {})}}).encode()
        for rank in range(2)
    }
    parts = {}
    if paths is not None:
        directory = staging_directory(paths.checkpoints, attempt=attempt, report=number, rank=1)
        directory.mkdir(parents=True)
        (directory / "model.bin").write_bytes(b"%d" % number)
        parts[1] = StagedPart(files=tuple(seal(directory)))
    return ReportRound(report=number, lines=lines, parts=parts)


def events(paths: RunPaths, kind: str) -> list[dict[str, Any]]:
    return [event for event in read_events(paths) if event["event"] == kind]


def test_a_checkpoint_is_committed_and_every_rank_is_told_where_it_is(
    paths: RunPaths, broadcasts: Broadcasts
):
    recorder = make_recorder(paths)
    recorder.record(make_round(1, paths=paths), broadcasts)
    path = paths.checkpoints / "000001"
    assert broadcasts == [("committed", {"report": 1, "path": str(path), "error": None})]
    assert recorder.checkpoint_path() == path
    assert recorder.checkpoints.latest == Checkpoint(path)
    assert recorder.run_record.status.checkpoint == "000001"
    (manifest,) = recorder.checkpoints.store.manifests()
    assert manifest.metrics == {"rank": 0}


def test_a_report_without_a_checkpoint_is_told_to_nobody(paths: RunPaths, broadcasts: Broadcasts):
    recorder = make_recorder(paths)
    recorder.record(make_round(1), broadcasts)
    assert broadcasts == []
    assert recorder.checkpoint_path() is None
    assert recorder.progress() == {"rank": 0}


def test_checkpoints_that_are_not_kept_are_deleted(paths: RunPaths, broadcasts: Broadcasts):
    recorder = make_recorder(paths, checkpoint_config=CheckpointConfig(num_to_keep=1))
    for number in (1, 2):
        recorder.record(make_round(number, paths=paths), broadcasts)
    recorder.checkpoints.close()
    assert [path.name for path in paths.checkpoints.iterdir()] == ["000002"]


def test_what_an_attempt_resumed_from_stays_until_the_attempt_ends(
    paths: RunPaths, broadcasts: Broadcasts
):
    make_recorder(paths).record(make_round(1, paths=paths), broadcasts)
    recorder = make_recorder(paths, checkpoint_config=CheckpointConfig(num_to_keep=1))
    assert recorder.begin_attempt(None).first_report == 1
    for number in (2, 3):
        recorder.record(make_round(number, paths=paths, attempt=2), broadcasts)
    recorder.checkpoints.close()
    assert sorted(path.name for path in paths.checkpoints.iterdir()) == ["000001", "000003"]
    recorder.end_attempt(error=None, reports=3)
    recorder.checkpoints.close()
    assert [path.name for path in paths.checkpoints.iterdir()] == ["000003"]


@pytest.mark.parametrize("lost", ["ledger", "status"])
def test_an_attempt_gets_a_new_number_though_the_line_of_the_last_is_lost(
    paths: RunPaths, lost: str
):
    recorder = make_recorder(paths)
    recorder.begin_attempt(None)
    if lost == "ledger":
        paths.ledger.unlink()
    else:
        lines = paths.ledger.read_text().splitlines()
        paths.status.unlink()
        # A line of that attempt is left.
        recorder.run_record.note("hang", attempt=2, ranks=[0])
        paths.ledger.write_text(paths.ledger.read_text().replace(lines[-1], lines[-1][:20]))
    status = RunStatus(name="run", state=RunState.RUNNING, launcher="local", **last_attempt(paths))
    assert (
        Recorder(paths=paths, run_config=RunConfig(), status=status).begin_attempt(None).attempt
        == 3
    )


def test_an_event_for_which_there_was_no_room_is_written_before_the_next_one(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
):
    def full_disk(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    recorder = make_recorder(paths)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunRecord, "append", full_disk)
        recorder.begin_attempt(None)
    monkeypatch.setattr(executor_record, "STATUS_INTERVAL_S", 0.0)
    assert events(paths, "attempt-started") == []
    recorder.tick(phase="training", reports=0)
    assert [event["attempt"] for event in events(paths, "attempt-started")] == [2]


def test_the_end_of_a_run_is_written_before_what_it_deletes_is_gone(
    paths: RunPaths, broadcasts: Broadcasts, disk: SlowDisk
):
    recorder = make_recorder(paths, checkpoint_config=CheckpointConfig(num_to_keep=1))
    for number in (1, 2):
        recorder.record(make_round(number, paths=paths), broadcasts)
    ending = threading.Thread(target=recorder.end, args=(None,))
    ending.start()
    try:
        wait_until(lambda: events(paths, "run-ended"))
        status = read_status(paths)
        assert status is not None
        assert status.state is RunState.FINISHED
        assert ending.is_alive()
    finally:
        disk.lets.set()
        ending.join(60)
    assert [path.name for path in paths.checkpoints.iterdir()] == ["000002"]


def test_an_attempt_has_no_nodes_before_its_ranks_are_there(paths: RunPaths):
    recorder = make_recorder(paths)
    recorder.begin_attempt(None)
    recorder.run_record.change(world_size=2, nodes=("node1", "node2"))
    recorder.end_attempt(error=NodeLostError("node2 is lost", rank=1, hostname="node2"), reports=0)
    recorder.begin_attempt(None)
    status = read_status(paths)
    assert status is not None
    assert (status.attempt, status.world_size, status.nodes) == (3, 0, ())
    # Ranks that cannot be started are on no node.
    recorder.end_attempt(error=LaunchError("no"), reports=0)
    ended = [e["nodes"] for e in read_events(paths) if e["event"] == "attempt-ended"]
    assert ended == [["node1", "node2"], []]


def test_waits_of_what_an_earlier_attempt_did_are_left_out(paths: RunPaths, broadcasts: Broadcasts):
    def report(number: int, waited_us: int) -> None:
        line = {"time": float(number), "waited": [None, waited_us, 0], "metrics": {}}
        lines = {0: json.dumps(line).encode()}
        recorder.record(ReportRound(report=number, lines=lines, parts={}), broadcasts)

    recorder = make_recorder(paths)
    recorder.begin_attempt(None)
    for number in (1, 2, 3, 4):
        report(number, 500_000 * number)
    recorder.end_attempt(error=LaunchError("no"), reports=4)
    # It resumes from the beginning, and is as quick as before only with its fifth report.
    recorder.begin_attempt(None)
    for number in (1, 2, 3, 4):
        report(number, 900_000 * number)
    report(5, 900_000 * 4 + 250_000)
    recorder.end_attempt(error=None, reports=5)
    first, second = (e["waits"] for e in events(paths, "attempt-ended"))
    assert (first["seconds"], first["checkpoint"]["mean"], first["data"]) == (3.0, 1.5, None)
    assert (second["seconds"], second["checkpoint"]["mean"]) == (1.0, 0.25)


def test_who_asks_for_checkpoints_is_answered_once_its_reports_are_recorded(
    paths: RunPaths, broadcasts: Broadcasts
):
    recorder = make_recorder(paths)
    tracker = AttemptTracker(world_size=2, first_report=0)
    tracker.asked = {1, 2}
    recorder.answer(tracker, broadcasts)
    assert broadcasts == []
    recorder.record(make_round(1, {"loss": 0.5}, paths=paths), broadcasts)
    broadcasts.clear()
    recorder.answer(tracker, broadcasts)
    ((op, details),) = broadcasts
    assert (op, details["report"]) == ("checkpoints", 1)
    metrics = {"rank": 0, "loss": 0.5}
    assert json.loads(details["body"]) == [[str(paths.checkpoints / "000001"), metrics]]
    assert tracker.asked == {2}


def test_who_asks_for_a_slot_to_write_gets_it_when_there_is_room(
    paths: RunPaths, broadcasts: Broadcasts
):
    recorder = make_recorder(paths, sync_config=SyncConfig(max_writers=1))
    recorder.begin_attempt(None)
    tracker = AttemptTracker(world_size=3, first_report=0)
    for rank in (2, 0):
        tracker.feed(Frame({"op": "slot", "rank": rank, "number": 1, "wanted": True}, b"", b""))
    recorder.answer(tracker, broadcasts)
    recorder.answer(tracker, broadcasts)
    assert broadcasts == [("slot", {"ranks": [2], "number": 1})]
    tracker.feed(Frame({"op": "slot", "rank": 2, "number": 1, "wanted": False}, b"", b""))
    recorder.answer(tracker, broadcasts)
    assert broadcasts[1:] == [("slot", {"ranks": [0], "number": 1})]
    # Whoever wrote when an attempt ended writes no more.
    recorder.begin_attempt(None)
    tracker.feed(Frame({"op": "slot", "rank": 1, "number": 1, "wanted": True}, b"", b""))
    recorder.answer(tracker, broadcasts)
    assert broadcasts[2:] == [("slot", {"ranks": [1], "number": 1})]


def test_a_name_that_is_taken_is_told_to_every_rank(paths: RunPaths, broadcasts: Broadcasts):
    recorder = make_recorder(paths)
    for number in (1, 2):
        round_ = make_round(number, paths=paths)
        parts = {rank: replace(part, name="best") for rank, part in round_.parts.items()}
        recorder.record(replace(round_, parts=parts), broadcasts)
    _, (_, details) = broadcasts
    assert "the name best belongs to the checkpoint of report 1" in details["error"]
    assert recorder.checkpoint_path() == paths.checkpoints / "best"


def test_a_commit_that_fails_is_told_to_every_rank_with_its_reason(
    paths: RunPaths, broadcasts: Broadcasts, monkeypatch: pytest.MonkeyPatch
):
    def full_disk(**_: Any) -> None:
        raise OSError(28, "No space left on device", "/run/checkpoints")

    recorder = make_recorder(paths)
    monkeypatch.setattr(recorder.checkpoints.store, "commit", full_disk)
    recorder.record(make_round(3, paths=paths), broadcasts)
    ((op, details),) = broadcasts
    assert (op, details["report"], details["path"]) == ("committed", 3, None)
    assert details["error"] == "No space left on device (/run/checkpoints)"
    assert recorder.checkpoints.latest is None


def test_different_content_under_one_name_is_told(
    paths: RunPaths, broadcasts: Broadcasts, capsys: pytest.CaptureFixture[str]
):
    round_ = make_round(1, paths=paths)
    directory = staging_directory(paths.checkpoints, attempt=1, report=1, rank=0)
    directory.mkdir()
    (directory / "model.bin").write_bytes(b"another")
    round_ = ReportRound(
        report=1,
        lines=round_.lines,
        parts={**round_.parts, 0: StagedPart(files=tuple(seal(directory)))},
    )
    make_recorder(paths).record(round_, broadcasts)
    said = capsys.readouterr().err
    assert "checkpoint 000001: ranks saved different content under the same name" in said
    assert said.endswith("the lowest rank's was kept: model.bin\n")


@pytest.mark.parametrize(
    ("config", "metrics", "message"),
    [
        (
            {"checkpoint_config": CheckpointConfig(checkpoint_score_attribute="acuracy")},
            {"accuracy": 0.5},
            r"attribute='acuracy'\): report 1 has no metric 'acuracy'\. The metrics are accuracy, "
            r"rank\. Did you mean 'accuracy'\?",
        ),
        (
            {"stop": {"val/f1": 0.9}},
            {"valid": {"f1": 0.5}},
            r"RunConfig\(stop=\{'val/f1': \.\.\.\}\): report 1 .* Did you mean 'valid/f1'\?",
        ),
        (
            {"stop": {"epoch": 3, "zzz": 1}},
            {"epoch": 1},
            r"no metric 'zzz'. The metrics are epoch, rank\.\nMend the name and call fit\(\) again",
        ),
    ],
)
def test_a_name_that_no_report_has_is_refused_at_the_first(
    paths: RunPaths, broadcasts: Broadcasts, config: Any, metrics: Any, message: str
):
    with pytest.raises(ConfigError, match=message):
        make_recorder(paths, **config).record(make_round(1, metrics, paths=paths), broadcasts)
    # The checkpoint is there all the same: the run resumes from it.
    assert [m.name for m in CheckpointStore(paths.checkpoints).manifests()] == ["000001"]


def test_no_checkpoint_is_deleted_for_a_name_that_none_has(paths: RunPaths, broadcasts: Broadcasts):
    make_recorder(paths).record(make_round(1, {"loss": 1.0}, paths=paths), broadcasts)
    keep = CheckpointConfig(num_to_keep=1, checkpoint_score_attribute="los")
    recorder = make_recorder(paths, checkpoint_config=keep)
    recorder.begin_attempt(None)
    with pytest.raises(ConfigError, match="Did you mean 'loss'"):
        recorder.record(make_round(2, {"loss": 2.0}, paths=paths, attempt=2), broadcasts)
    assert len(CheckpointStore(paths.checkpoints).manifests()) == 2


def test_a_report_without_a_checkpoint_needs_no_score(paths: RunPaths, broadcasts: Broadcasts):
    keep = CheckpointConfig(num_to_keep=1, checkpoint_score_attribute="accuracy")
    recorder = make_recorder(paths, checkpoint_config=keep)
    recorder.record(make_round(1, {"loss": 1.0}), broadcasts)
    recorder.record(make_round(2, {"accuracy": 1.0}, paths=paths), broadcasts)


@pytest.mark.parametrize("first", [{"accuracy": 0.1}, {"accuracy": None}])
def test_a_metric_that_is_known_may_be_missing(
    paths: RunPaths, broadcasts: Broadcasts, capsys: pytest.CaptureFixture[str], first: Any
):
    keep = CheckpointConfig(num_to_keep=1, checkpoint_score_attribute="accuracy")
    recorder = make_recorder(paths, checkpoint_config=keep, stop={"accuracy": 0.9})
    recorder.record(make_round(1, first, paths=paths), broadcasts)
    assert capsys.readouterr().err == ""
    for report in (2, 3):
        recorder.record(make_round(report, {"loss": 1.0}, paths=paths), broadcasts)
    assert capsys.readouterr().err.count("has no metric 'accuracy'") == 1
    # Another process goes on, whose first report lacks it.
    recorder = make_recorder(paths, checkpoint_config=keep, stop={"accuracy": 0.9})
    if first["accuracy"] is not None:
        recorder.begin_attempt(None)
        recorder.record(make_round(4, {"loss": 1.0}, paths=paths), broadcasts)


def test_a_partial_report_may_lack_a_metric_and_a_later_one_may_not(
    paths: RunPaths, broadcasts: Broadcasts
):
    recorder = make_recorder(paths, stop={"accuracy": 0.9})
    partial = json.dumps({"partial": True, "metrics": {"loss": 1.0}}).encode()
    round_ = replace(make_round(1), lines={0: partial, 1: partial})
    recorder.record(round_, broadcasts)
    with pytest.raises(ConfigError, match="report 2 has no metric 'accuracy'"):
        recorder.record(make_round(2, {"loss": 1.0}), broadcasts)


@pytest.mark.parametrize(
    "form", [lambda loss: {"val/loss": loss}, lambda loss: {"val": {"loss": loss}}]
)
def test_a_name_with_a_slash_keeps_the_best_and_stops_the_run(
    paths: RunPaths, broadcasts: Broadcasts, form: Any
):
    keep = CheckpointConfig(
        num_to_keep=1, checkpoint_score_attribute="val/loss", checkpoint_score_order="min"
    )
    recorder = make_recorder(paths, checkpoint_config=keep, stop={"val/loss": 4.0})
    for report, loss in enumerate((3.0, 1.0, float("-inf"), 4.0), start=1):
        recorder.record(make_round(report, form(loss), paths=paths), broadcasts)
    names = [m.name for m in CheckpointStore(paths.checkpoints).manifests()]
    # The newest stays whatever its score.
    assert names == ["000002", "000004"]
    assert recorder.decision.reason == "val/loss=4.0 reached 4.0"


def test_a_callback_sees_every_ranks_metrics_and_the_checkpoint(
    paths: RunPaths, broadcasts: Broadcasts
):
    seen = Calls()
    recorder = make_recorder(paths, callbacks=[seen])
    recorder.record(make_round(1, {"loss": 0.5}, paths=paths), broadcasts)
    ((hook, context, metrics, checkpoint),) = seen.calls
    assert hook == "after_report"
    assert (context.name, context.path, context.attempt, context.world_size) == (
        "run",
        paths.root,
        1,
        2,
    )
    assert metrics == [{"rank": 0, "loss": 0.5}, {"rank": 1, "loss": 0.5}]
    assert checkpoint == Checkpoint(paths.checkpoints / "000001")


def test_a_callback_that_raises_is_logged_and_neither_the_run_nor_other_callbacks_suffer(
    paths: RunPaths, broadcasts: Broadcasts, capsys: pytest.CaptureFixture[str]
):
    seen = Calls()
    recorder = make_recorder(paths, callbacks=[Broken(), seen])
    recorder.record(make_round(1), broadcasts)
    assert len(seen.calls) == 1
    (event,) = events(paths, "callback-failed")
    assert event["error"] == "Broken.after_report: ValueError: no such server"
    assert "callback failed: Broken.after_report" in capsys.readouterr().err


def test_a_fatal_callback_that_raises_ends_the_run(paths: RunPaths, broadcasts: Broadcasts):
    recorder = make_recorder(paths, callbacks=[FatallyBroken()])
    with pytest.raises(ValueError, match="no such server"):
        recorder.record(make_round(1), broadcasts)
    assert len(events(paths, "callback-failed")) == 1


def test_a_single_callback_object_can_be_fatal(paths: RunPaths, broadcasts: Broadcasts):
    callback = Broken()
    callback.fatal = True  # type: ignore[misc]
    with pytest.raises(ValueError, match="no such server"):
        make_recorder(paths, callbacks=[callback]).record(make_round(1), broadcasts)


def test_a_goal_of_the_stop_mapping_is_reached_or_passed(paths: RunPaths, broadcasts: Broadcasts):
    recorder = make_recorder(paths, stop={"accuracy": 0.9, "epoch": 100})
    for accuracy in (0.5, None, "high"):
        recorder.record(make_round(1, {"accuracy": accuracy, "epoch": 1}), broadcasts)
        assert recorder.stop is None
    recorder.record(make_round(2, {"accuracy": 0.9}), broadcasts)
    assert recorder.decision.reason == "accuracy=0.9 reached 0.9"
    recorder.raise_if_unfinished(2, notified=True)


def test_the_next_executor_knows_that_a_saved_report_has_met_the_stop_criterion(
    paths: RunPaths, broadcasts: Broadcasts
):
    first = make_recorder(paths, stop={"accuracy": 0.9})
    first.begin_attempt(None)
    first.record(make_round(1, {"accuracy": 0.95}, paths=paths, attempt=2), broadcasts)
    # That executor dies before its ranks have returned.
    second = make_recorder(paths, stop={"accuracy": 0.9})
    assert second.begin_attempt(None).first_report == 1
    assert second.decision.reason == "accuracy=0.95 reached 0.9"
    assert not second.decision.ends_early


def test_the_next_executor_makes_a_report_again_that_met_the_stop_criterion_and_was_not_saved(
    paths: RunPaths, broadcasts: Broadcasts
):
    first = make_recorder(paths, stop={"accuracy": 0.9})
    first.begin_attempt(None)
    first.record(make_round(1, {"accuracy": 0.95}), broadcasts)
    second = make_recorder(paths, stop={"accuracy": 0.9})
    second.begin_attempt(None)
    assert second.decision.reason is None


def test_a_tuner_is_not_asked_about_the_report_that_meets_a_goal(
    paths: RunPaths, broadcasts: Broadcasts
):
    recorder = make_recorder(paths, stop={"accuracy": 0.9})
    tuner = FakeTuner()
    recorder.tuner = tuner  # type: ignore[assignment]
    tracker = AttemptTracker(world_size=2, first_report=0)
    for number, accuracy in ((1, 0.5), (2, 0.95)):
        recorder.record(make_round(number, {"accuracy": accuracy}), broadcasts)
        tracker.awaited = number
        recorder.answer(tracker, broadcasts)
    assert [report for _, report in tuner.reported] == [1]
    assert recorder.decision.criterion is not None


def test_a_stop_function_sees_the_number_of_the_report_and_rank_0s_metrics(
    paths: RunPaths, broadcasts: Broadcasts
):
    seen = []

    def stop(number: int, metrics: Mapping[str, Any]) -> bool:
        seen.append((number, metrics))
        return number == 2

    recorder = make_recorder(paths, stop=stop)
    recorder.record(make_round(1), broadcasts)
    assert recorder.stop is None
    recorder.record(make_round(2), broadcasts)
    assert recorder.decision.reason == "the stop function returned true"
    recorder.record(make_round(3), broadcasts)
    assert [number for number, _ in seen] == [1, 2]
    for number, metrics in seen:
        since = {"training_iteration": number, "iterations_since_restore": number}
        seconds = {name: metrics[name] for name in ("time_total_s", "time_since_restore")}
        assert metrics == {"rank": 0, **since, **seconds}
    recorder.raise_if_unfinished(3, notified=True)


def test_whatever_else_ends_a_run_that_has_reached_its_goal_it_is_finished(
    paths: RunPaths, broadcasts: Broadcasts
):
    recorder = make_recorder(paths, stop={"accuracy": 0.9})
    recorder.request_stop(StopNotice(kind=StopKind.TIME_LIMIT, why="its time ends"))
    recorder.record(make_round(1, {"accuracy": 0.95}), broadcasts)
    assert recorder.decision.reason == "its time ends"
    recorder.raise_if_unfinished(1, notified=True)
    # Unless its ranks have failed.
    recorder.withdraw_stop(StopKind.GOAL)
    with pytest.raises(RunStoppedError, match="because its time ends"):
        recorder.raise_if_stopped(1)


def test_a_goal_is_looked_for_again_after_the_attempt_that_reached_it_has_failed(
    paths: RunPaths, broadcasts: Broadcasts
):
    recorder = make_recorder(paths, stop={"accuracy": 0.9})
    recorder.record(make_round(1, {"accuracy": 0.95}), broadcasts)
    recorder.withdraw_stop(StopKind.GOAL)
    recorder.begin_attempt(None)
    assert recorder.stop is None
    recorder.record(make_round(1, {"accuracy": 0.8}), broadcasts)
    assert recorder.stop is None
    recorder.record(make_round(2, {"accuracy": 0.9}), broadcasts)
    assert recorder.decision.reason == "accuracy=0.9 reached 0.9"


@pytest.mark.parametrize("damaged", [False, True])
def test_a_goal_whose_report_is_saved_stays_met_as_nobody_will_make_it_again(
    paths: RunPaths, broadcasts: Broadcasts, damaged: bool
):
    recorder = make_recorder(paths, stop={"accuracy": 0.9})
    recorder.record(make_round(1, {"accuracy": 0.95}, paths=paths), broadcasts)
    recorder.withdraw_stop(StopKind.GOAL)
    # In between it is no reason to leave a job, nor not to stop.
    assert recorder.stop is None
    if damaged:
        assert recorder.checkpoints.latest is not None
        (recorder.checkpoints.latest.path / "model.bin").unlink()
    recorder.begin_attempt(None)
    assert recorder.decision.reason == (None if damaged else "accuracy=0.95 reached 0.9")
    recorder.raise_if_unfinished(1, notified=True)


def test_a_stop_from_outside_is_no_success_and_says_where_the_run_resumes(paths: RunPaths):
    recorder = make_recorder(paths)
    recorder.request_stop(StopNotice(kind=StopKind.REQUEST, why="its ranks got SIGUSR2"))
    message = (
        r"stopped because its ranks got SIGUSR2, at report 7\. It resumes from its beginning at "
        r"the next fit\(\)"
    )
    with pytest.raises(RunStoppedError, match=message):
        recorder.raise_if_stopped(7)


def test_a_request_to_stop_is_found_with_the_next_status(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch
):
    recorder = make_recorder(paths)
    paths.stop_request.touch()
    recorder.tick(phase="training", reports=4)
    assert recorder.stop is None
    monkeypatch.setattr(executor_record, "STATUS_INTERVAL_S", 0.0)
    recorder.tick(phase="training", reports=5)
    assert recorder.decision.reason == "it was asked to (hpctrain cancel)"
    status = read_status(paths)
    assert status is not None
    stopping = "stopping: it was asked to (hpctrain cancel)"
    assert (status.phase, status.reports) == (stopping, 5)


def test_a_request_to_stop_is_found_at_once_by_an_executor_that_is_notified(paths: RunPaths):
    recorder = make_recorder(paths)
    ours, its = make_pair()
    recorder.tuner, tuner = ExecutorEnd(its.detach()), TunerEnd()
    tuner.keep(ours)
    with closing(tuner), closing(recorder.tuner):
        tuner.notify_of_stop()
        recorder.tick(phase="training", reports=4)
        assert recorder.stop is None, "nothing is stopped by the news alone"
        paths.stop_request.touch()
        recorder.tick(phase="training", reports=4)
        assert recorder.stop is None
        tuner.notify_of_stop()
        recorder.tick(phase="training", reports=4)
    assert recorder.decision.reason == "it was asked to (hpctrain cancel)"


def test_an_attempt_begins_at_the_newest_good_checkpoint_and_says_what_it_set_aside(
    paths: RunPaths, broadcasts: Broadcasts, tmp_path: Path
):
    recorder = make_recorder(paths)
    assert recorder.begin_attempt(None).first_report == 0
    for number in (1, 2):
        recorder.record(make_round(number, paths=paths, attempt=2), broadcasts)
    (paths.checkpoints / "000002" / "model.bin").write_bytes(b"damage")
    start = recorder.begin_attempt(tmp_path)
    assert (start.attempt, start.first_report) == (3, 1)
    assert start.checkpoint == Checkpoint(paths.checkpoints / "000001")
    assert recorder.run_record.status.checkpoint == "000001"
    assert len(events(paths, "checkpoint-damaged")) == 1
    assert [e["first_report"] for e in events(paths, "attempt-started")] == [0, 1]


def test_an_attempt_does_not_begin_while_the_newest_checkpoint_cannot_be_read(
    paths: RunPaths, broadcasts: Broadcasts, monkeypatch: pytest.MonkeyPatch
):
    recorder = make_recorder(paths)
    recorder.record(make_round(1, paths=paths), broadcasts)
    read = io.open

    def away(file: Any, *args: Any, **options: Any) -> Any:
        path = Path(str(file))
        if path.name == "model.bin":
            raise OSError(errno.ESTALE, "Stale file handle")
        return read(file, *args, **options)

    with monkeypatch.context() as outage:
        outage.setattr(io, "open", away)
        outage.setattr(builtins, "open", away)
        outage.setattr(run_checkpoints, "_PAUSES_S", (0.01, 0.01))
        with pytest.raises(UnreadableError, match=r"Stale file handle\..*try again") as raised:
            recorder.begin_attempt(None)
    assert events(paths, "attempt-started") == []
    assert len(events(paths, "checkpoint-unreadable")) == 2
    recorder.end(raised.value)
    # What fit() raises where the run was in another process.
    assert isinstance(Result.from_path(paths.root).error, CheckpointError)
    assert recorder.begin_attempt(None).first_report == 1


def test_a_short_outage_is_waited_for(
    paths: RunPaths,
    broadcasts: Broadcasts,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    recorder = make_recorder(paths)
    recorder.record(make_round(1, paths=paths), broadcasts)
    newest_good, looks = CheckpointStore.newest_good, []

    def away_at_first(store: CheckpointStore, **how: Any) -> Any:
        looks.append(store)
        if len(looks) < 3:
            raise UnreadableError("the filesystem is away.")
        return newest_good(store, **how)

    monkeypatch.setattr(CheckpointStore, "newest_good", away_at_first)
    monkeypatch.setattr(run_checkpoints, "_PAUSES_S", (0.01, 0.02, 0.03))
    assert recorder.begin_attempt(None).first_report == 1
    assert len(looks) == 3
    assert "hpctrain: the filesystem is away. Looking again in " in capsys.readouterr().err


def test_checkpoints_that_cannot_be_listed_for_a_moment_are_waited_for(
    paths: RunPaths, broadcasts: Broadcasts, monkeypatch: pytest.MonkeyPatch
):
    recorder = make_recorder(paths)
    recorder.record(make_round(1, paths=paths), broadcasts)
    prepare, looks = CheckpointStore.prepare, []

    def away_at_first(store: CheckpointStore) -> None:
        looks.append(store)
        if len(looks) < 3:
            raise OSError(errno.EIO, "Input/output error")
        prepare(store)

    monkeypatch.setattr(CheckpointStore, "prepare", away_at_first)
    monkeypatch.setattr(run_checkpoints, "_PAUSES_S", (0.01, 0.01, 0.01))
    assert recorder.begin_attempt(None).first_report == 1
    assert len(looks) == 3


def test_what_cannot_be_deleted_after_an_attempt_is_told_and_hides_nothing(
    paths: RunPaths, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def away(_: CheckpointStore) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(CheckpointStore, "prepare", away)
    make_recorder(paths).checkpoints.clear()
    told = f"hpctrain: cannot write checkpoints/ in {paths.root}: Stale file handle\n"
    assert capsys.readouterr().err == told


def test_a_checkpoint_that_an_attempt_began_with_is_doubtful_to_the_next(
    paths: RunPaths, broadcasts: Broadcasts, monkeypatch: pytest.MonkeyPatch
):
    recorder = make_recorder(paths)
    doubtful = []
    newest_good = CheckpointStore.newest_good

    def watched(store: CheckpointStore, **names: Any) -> Any:
        doubtful.append(set(names["doubtful"]))
        return newest_good(store, **names)

    monkeypatch.setattr(CheckpointStore, "newest_good", watched)
    recorder.begin_attempt(None)
    recorder.record(make_round(1, paths=paths, attempt=2), broadcasts)
    recorder.begin_attempt(None)
    # Another executor of the run knows it from the ledger.
    make_recorder(paths).begin_attempt(None)
    assert doubtful == [set(), set(), {"000001"}]


def test_a_run_without_a_checkpoint_begins_at_that_of_another_run(paths: RunPaths, tmp_path: Path):
    start = make_recorder(paths).begin_attempt(tmp_path)
    assert (start.first_report, start.checkpoint) == (0, Checkpoint(tmp_path))


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (None, RunState.FINISHED),
        (WorkerError("rank 1 of 2 on n1 failed"), RunState.FAILED),
        (RunStoppedError("asked to"), RunState.STOPPED),
        (KeyboardInterrupt(), RunState.STOPPED),
    ],
)
def test_the_end_is_written_down_and_told_to_callbacks(
    paths: RunPaths, broadcasts: Broadcasts, error: BaseException | None, state: RunState
):
    seen = Calls()
    recorder = make_recorder(paths, callbacks=[seen])
    recorder.record(make_round(1, {"loss": 0.5}), broadcasts)
    recorder.end_attempt(error=error, reports=1)
    recorder.end(error)
    status = read_status(paths)
    assert status is not None
    assert status.state is state
    assert status.ended_at is not None
    assert status.metrics == {"rank": 0, "loss": 0.5}
    (ended,) = events(paths, "run-ended")
    assert ended["state"] == state.value
    (attempt,) = events(paths, "attempt-ended")
    assert attempt["cause"].startswith("finished" if error is None else type(error).__name__)
    hook, _, result = seen.calls[-1]
    assert (hook, result.state) == ("on_finish", state.value)


def test_the_return_value_is_readable_by_its_user_only(paths: RunPaths):
    recorder = make_recorder(paths)
    recorder.keep_return_value(b"", notified=False)
    assert not paths.return_value.exists()
    recorder.keep_return_value(b"pickle", notified=False)
    assert paths.return_value.stat().st_mode & 0o777 == 0o600
