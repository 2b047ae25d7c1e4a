from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from hpctrain.config import RunConfig
from hpctrain.control.wire import Frame
from hpctrain.errors import RunStoppedError
from hpctrain.execute.recorder import Recorder
from hpctrain.execute.stop import StopAgreement
from hpctrain.execute.stop_decision import StopKind, StopNotice
from hpctrain.execute.tracker import AttemptTracker
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus

Sent = list[tuple[str, dict[str, Any]]]


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    status = RunStatus(name="run", state=RunState.RUNNING, launcher="local")
    return Recorder(paths=RunPaths(tmp_path), run_config=RunConfig(), status=status)


@pytest.fixture
def tracker() -> AttemptTracker:
    tracker = AttemptTracker(world_size=2, first_report=0)
    for rank in (0, 1):
        enter(tracker, rank, "training")
    return tracker


def enter(tracker: AttemptTracker, rank: int, phase: str) -> None:
    tracker.feed(Frame({"op": "phase", "rank": rank, "phase": phase}, b"", b""))


@pytest.fixture
def sent() -> Sent:
    return []


@pytest.fixture
def agreement(recorder: Recorder, tracker: AttemptTracker, sent: Sent) -> StopAgreement:
    return StopAgreement(recorder, tracker, lambda op, **details: sent.append((op, details)))


def answer(tracker: AttemptTracker, rank: int, report: int) -> None:
    tracker.feed(Frame({"op": "frozen", "rank": rank, "report": report}, b"", b""))


def test_nobody_is_asked_as_long_as_no_stop_is_wanted(agreement: StopAgreement, sent: Sent):
    agreement.step()
    assert sent == []


def test_ranks_are_asked_once_and_told_once_when_all_have_answered(
    agreement: StopAgreement, recorder: Recorder, tracker: AttemptTracker, sent: Sent
):
    recorder.request_stop(StopNotice(kind=StopKind.REQUEST, why="it was asked to"))
    agreement.step()
    answer(tracker, 0, 4)
    agreement.step()
    assert sent == [("freeze", {})]
    answer(tracker, 1, 6)
    for _ in range(3):
        agreement.step()
    assert sent == [("freeze", {}), ("stop", {"report": 7, "unwind": True})]


def test_ranks_that_would_not_hear_it_yet_are_asked_later(recorder: Recorder, sent: Sent):
    tracker = AttemptTracker(world_size=2, first_report=0)
    agreement = StopAgreement(recorder, tracker, lambda op, **_: sent.append((op, {})))
    recorder.request_stop(StopNotice(kind=StopKind.REQUEST, why="it was asked to"))
    agreement.step()
    enter(tracker, 1, "importing")
    agreement.step()
    assert sent == []
    enter(tracker, 0, "importing")
    agreement.step()
    agreement.step()
    assert sent == [("freeze", {})]


def test_a_signal_that_a_rank_got_is_a_wish_to_stop(
    agreement: StopAgreement, recorder: Recorder, tracker: AttemptTracker, sent: Sent
):
    tracker.feed(Frame({"op": "signal", "rank": 1, "name": "SIGUSR2"}, b"", b""))
    agreement.step()
    assert recorder.decision.reason == "its ranks got SIGUSR2"
    assert sent == [("freeze", {})]


def test_who_has_reached_his_goal_has_all_the_time_until_somebody_is_in_a_hurry(
    agreement: StopAgreement,
    recorder: Recorder,
    tracker: AttemptTracker,
    sent: Sent,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("hpctrain.timeouts.STOP_AGREEMENT_S", -1.0)
    recorder.request_stop(StopNotice(kind=StopKind.GOAL, why="acc=0.9 reached 0.9"))
    agreement.step()
    for rank in (0, 1):
        answer(tracker, rank, 3)
    agreement.step()
    told = list(sent)
    recorder.request_stop(StopNotice(kind=StopKind.REQUEST, why="it was asked to"))
    with pytest.raises(RunStoppedError, match="because it was asked to, but its ranks did not"):
        agreement.step()
    # Some ranks may have left after report 4 already.
    assert sent == told == [("freeze", {}), ("stop", {"report": 4, "unwind": True})]


def test_a_signal_is_heeded_although_a_stop_for_another_reason_is_under_way(
    agreement: StopAgreement, recorder: Recorder, tracker: AttemptTracker, sent: Sent
):
    recorder.request_stop(StopNotice(kind=StopKind.GOAL, why="acc=0.9 reached 0.9"))
    agreement.step()
    tracker.feed(Frame({"op": "signal", "rank": 1, "name": "SIGUSR2"}, b"", b""))
    agreement.step()
    assert recorder.decision.reason == "its ranks got SIGUSR2"
    assert sent == [("freeze", {})]


def test_signals_are_passed_on_although_a_reason_stands_that_weighs_as_much(
    recorder: Recorder, tracker: AttemptTracker, sent: Sent
):
    """The job may end earlier than that reason says."""
    taken: list[str] = []
    agreement = StopAgreement(
        recorder,
        tracker,
        lambda op, **details: sent.append((op, details)),
        take_signals=lambda names: taken.extend(names),
    )
    recorder.request_stop(StopNotice(kind=StopKind.TIME_LIMIT, why="test", deadline=2e10))
    agreement.step()
    tracker.feed(Frame({"op": "signal", "rank": 1, "name": "SIGUSR2"}, b"", b""))
    agreement.step()
    assert taken == ["SIGUSR2"]


def test_ranks_that_went_on_without_more_workers_are_asked_again_for_a_better_reason(
    agreement: StopAgreement, recorder: Recorder, tracker: AttemptTracker, sent: Sent
):
    recorder.request_stop(StopNotice(kind=StopKind.RESIZE, why="nodes are back"))
    agreement.step()
    for rank, report in ((0, 3), (1, 5)):
        answer(tracker, rank, report)
    agreement.step()
    assert sent == [("freeze", {}), ("stop", {"report": 6, "unwind": False})]
    sent.clear()
    recorder.request_stop(StopNotice(kind=StopKind.TIME_LIMIT, why="its time ends", deadline=1e10))
    agreement.step()
    answer(tracker, 0, 9)
    agreement.step()
    assert sent == [("freeze", {})]
    answer(tracker, 1, 8)
    agreement.step()
    leave = {"deadline": 1e10, "nodes": {}}
    assert sent[1:] == [("stop", {"report": 10, "unwind": True, "leave": leave})]


def test_ranks_that_never_ask_should_stop_are_ended_with_a_hint(
    agreement: StopAgreement, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
):
    recorder.request_stop(StopNotice(kind=StopKind.REQUEST, why="it was asked to"))
    monkeypatch.setattr("hpctrain.timeouts.STOP_AGREEMENT_S", -1.0)
    with pytest.raises(RunStoppedError, match=r"its ranks did not return .*asks should_stop\(\)"):
        agreement.step()


@pytest.mark.parametrize(
    ("kind", "left_s", "limit"),
    [
        (StopKind.TIME_LIMIT, 120.0, r"\d+ s \(SlurmConfig\(stop_notice_s=\.\.\.\)\)"),
        (StopKind.PREEMPTION, 120.0, r"\d+ s \(timeout job_end\)"),
        (StopKind.REQUEST, 60.0, r"\d+ s \(timeout job_end\)"),
        (StopKind.REQUEST, 600.0, r"75 s \(timeout stop_agreement\)"),
    ],
)
def test_what_has_limited_the_time_to_return_is_named(
    agreement: StopAgreement,
    recorder: Recorder,
    monkeypatch: pytest.MonkeyPatch,
    kind: StopKind,
    left_s: float,
    limit: str,
) -> None:
    recorder.request_stop(StopNotice(kind=kind, why="...", deadline=time.time() + left_s))
    monkeypatch.setattr("hpctrain.execute.stop.Deadline.is_over", True)
    with pytest.raises(RunStoppedError, match=f"did not return within {limit}"):
        agreement.step()
