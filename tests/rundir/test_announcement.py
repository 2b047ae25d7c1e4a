from __future__ import annotations

from typing import Any

import pytest

from hpctrain.rundir.announcement import announce, announcements


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
