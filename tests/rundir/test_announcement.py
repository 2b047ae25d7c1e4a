from __future__ import annotations

from typing import Any

import pytest

from hpctrain.rundir.announcement import announce, announcements
from hpctrain.rundir.attempts import describe_event, name_slow_nodes


def restart(**details: Any) -> dict[str, Any]:
    return {"event": "restart", "what": "it failed", "checkpoint": "000006", **details}


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (restart(number=1, budget=2), "it failed; restart 1 of 2 from checkpoint 000006"),
        (restart(number=3, budget=-1), "it failed; restart 3 from checkpoint 000006"),
        (restart(number=None), "it failed; restart from checkpoint 000006"),
        (
            restart(number=1, budget=2, checkpoint=None),
            "it failed; restart 1 of 2 from the beginning",
        ),
        (
            {"event": "requeued", "job_id": "7", "why": "job 7 is preempted", "checkpoint": "best"},
            "job 7 is preempted; job 7 is queued again and resumes from checkpoint best",
        ),
        (
            {
                "event": "successor",
                "job_id": "8",
                "after": "7",
                "why": "the time limit of job 7 ends",
                "checkpoint": None,
            },
            "the time limit of job 7 ends; job 8 resumes from the beginning",
        ),
        ({"event": "successor", "job_id": "8", "after": None}, ""),
        (
            {"event": "executor-lost", "host": "n1"},
            "node n1, which had the executor, is lost; another job resumes",
        ),
        ({"event": "attempt-ended", "attempt": 1}, ""),
        # Of a version that wrote less.
        (
            {"event": "restart", "reason": "r", "after": "rank 1 of 2 failed\n  Log: x"},
            "rank 1 of 2 failed; restart from the beginning",
        ),
    ],
)
def test_each_way_to_start_again_is_a_sentence(event: dict[str, Any], said: str) -> None:
    assert announce(event) == said


def test_what_was_before_a_persons_fit_is_not_said_again() -> None:
    events = [
        restart(number=1, budget=2),
        {"event": "fit", "continues": False},
        restart(what="first"),
        {"event": "fit", "continues": True},
        restart(what="second"),
    ]
    assert [said.partition(";")[0] for said in announcements(events)] == ["first", "second"]


SLOW = {
    "event": "node-slow",
    "time": 1.0,
    "attempt": 1,
    "node": "node7",
    "ranks": [3],
    "factor": 2.5,
    "since_step": 120,
    "step": 160,
    "reason": "its CPUs run at 40 % of their clock",
}


def test_a_node_that_was_slow_is_named_with_the_reason_and_what_became_of_it() -> None:
    slow = "node node7 is slow since step 120: steps take 2.5 times as long"
    why = "its CPUs run at 40 % of their clock"
    assert describe_event(SLOW) == f"{slow}: {why}"
    assert describe_event({**SLOW, "reason": ""}) == slow
    assert name_slow_nodes([SLOW]) == [f"attempt 1: {slow}: {why}"]
    ends: dict[str, tuple[dict[str, Any], str]] = {
        "node-slow-over": ({"step": 300}, "; no longer as of step 300"),
        "node-kept": ({"reason": "there is no other"}, "; it is kept: there is no other"),
        "node-left-out": ({"reason": "it is slow"}, "; it is left out"),
    }
    for event, (fields, expected) in ends.items():
        end = {"event": event, "time": 2.0, "node": "node7", **fields}
        assert name_slow_nodes([SLOW, end]) == [f"attempt 1: {slow}: {why}{expected}"]
        assert name_slow_nodes([end]) == [], "it was not named"
    assert name_slow_nodes([SLOW, {"event": "fit", "time": 3.0}]) == []
    assert name_slow_nodes([SLOW, {"event": "fit", "time": 3.0, "continues": True}]) != []
