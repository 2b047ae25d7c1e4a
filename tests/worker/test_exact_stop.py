"""The report that meets a stop criterion is the last one."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from hpctrain import timeouts
from hpctrain.worker.exact_stop import ExactStop
from hpctrain.worker.report_count import LeaveTraining, ReportCount


@pytest.mark.parametrize(
    ("goals", "rank", "report", "metrics", "is_met"),
    [
        ({"training_iteration": 3}, 0, 2, {}, False),
        ({"training_iteration": 3}, 0, 3, {}, True),
        ({"training_iteration": 3}, 1, 3, {}, True),
        ({"iterations_since_restore": 3}, 0, 4, {}, False),
        ({"iterations_since_restore": 3}, 0, 5, {}, True),
        ({"time_total_s": 0}, 0, 9, {}, False),
        ({"acc": 0.5}, 0, 1, {"acc": 0.5}, True),
        ({"acc": 0.5}, 0, 1, {"acc": float("nan")}, False),
        ({"val/acc": 0.5}, 0, 1, {"val": {"acc": 1}}, True),
        # Those of rank 0 count, which this one does not know.
        ({"acc": 0.5}, 1, 1, {"acc": 1.0}, False),
        ({"training_iteration": 3}, 1, 9, {"training_iteration": 1}, False),
        # As the ranks of a tree trainer report it.
        ({"training_iteration": 3}, 1, 3, {"training_iteration": 3}, True),
        ({"training_iteration": 3}, 0, 9, {"training_iteration": 1}, False),
    ],
)
def test_a_rank_finds_what_the_executor_finds(
    goals: dict[str, float], rank: int, report: int, metrics: dict[str, Any], is_met: bool
) -> None:
    stop = ExactStop(goals, rank=rank, first=2)
    assert stop.is_met(report, json.dumps(metrics).encode()) is is_met


def test_no_report_begins_before_the_executor_has_answered_the_last_one() -> None:
    count = ReportCount(rank=0, first=0, timeout_s=60)
    assert count.begin() == 1
    count.promise()
    # The executor adds one: others may have asked should_stop() already.
    answer = threading.Timer(0.1, lambda: count.stop_after(count.freeze() + 1))
    answer.start()
    with pytest.raises(LeaveTraining):
        count.begin()
    answer.join()
    assert count.begun == 1


def test_a_function_that_asks_learns_of_it_after_the_same_report() -> None:
    count = ReportCount(rank=0, first=0, timeout_s=60)
    count.begin()
    count.promise()
    answer = threading.Timer(0.1, lambda: count.stop_after(1))
    answer.start()
    assert count.should_stop_after(1)
    answer.join()
    assert count.begin() == 2, "one more report may have a last checkpoint"


def test_an_executor_that_sees_it_in_another_way_is_not_waited_for_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timeouts, "EXACT_STOP_S", 0.05)
    count = ReportCount(rank=0, first=0, timeout_s=60)
    count.begin()
    count.promise()
    assert count.begin() == 2
    assert not count.should_stop_after(2)
    count.stop_after(2)
    count.promise()
    with pytest.raises(LeaveTraining):
        count.begin()


def test_no_report_begins_before_a_tuner_has_decided_on_the_last_one() -> None:
    beats: list[None] = []
    count = ReportCount(rank=0, first=0, timeout_s=60, beat=lambda: beats.append(None))
    for number in (1, 2, 3):
        assert count.begin() == number
        count.promise(to_tuner=True)
        # What was decided on an earlier report says nothing about this one.
        count.go_on_after(number - 1)
        answer = threading.Timer(0.05, count.go_on_after, [number])
        answer.start()
        assert not count.should_stop_after(number)
        answer.join()
    assert beats, "a rank that waits does not hang"


def test_a_trial_that_a_tuner_stops_ends_with_the_report_that_was_decided_on() -> None:
    count = ReportCount(rank=0, first=0, timeout_s=60)
    count.begin()
    count.promise(to_tuner=True)
    assert count.freeze() + 1 == 1
    # Of ranks that are asked where they are, none goes on.
    count.go_on_after(1)
    answer = threading.Timer(0.05, count.stop_after, [1])
    answer.start()
    assert count.should_stop_after(1)
    answer.join()


def test_ranks_that_were_let_on_and_ranks_that_wait_agree_on_a_report() -> None:
    counts = [ReportCount(rank=rank, first=0, timeout_s=60) for rank in (0, 1)]
    for count in counts:
        count.begin()
        count.promise(to_tuner=True)
        count.go_on_after(1)
    counts[0].begin()
    counts[0].promise(to_tuner=True)
    at = max(count.freeze() for count in counts) + 1
    assert at == 2
    for count in counts:
        count.stop_after(at)
    assert counts[1].begin() == 2
    counts[1].promise(to_tuner=True)
    for count in counts:
        with pytest.raises(LeaveTraining):
            count.begin()


def test_a_tuner_that_does_not_answer_is_waited_for_once(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(timeouts, "TUNER_DECISION_S", 0.05)
    count = ReportCount(rank=0, first=0, timeout_s=60)
    for number in (1, 2, 3):
        assert count.begin() == number
        count.promise(to_tuner=True)
    assert capfd.readouterr().err.count("report 1 was not decided on within") == 1
    monkeypatch.setattr(timeouts, "TUNER_DECISION_S", 3600.0)
    assert count.begin() == 4
    count.promise(to_tuner=True)
    # It answers again, if late, and is waited for again.
    count.go_on_after(1)
    assert count.begin() == 5
    count.promise(to_tuner=True)
    answer = threading.Timer(0.05, count.go_on_after, [5])
    answer.start()
    assert count.begin() == 6
    answer.join()
    assert capfd.readouterr().err == ""
