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
