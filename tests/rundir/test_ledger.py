from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpctrain.rundir.ledger import append_event, newest_attempt, read_events
from hpctrain.rundir.paths import RunPaths


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return RunPaths(tmp_path)


def test_a_run_without_a_ledger_has_no_events(paths: RunPaths):
    assert read_events(paths) == []
    assert newest_attempt(paths) == 0


def test_events_come_back_oldest_first_with_their_details(paths: RunPaths):
    append_event(paths, "attempt-started", attempt=1, job_id="7")
    append_event(paths, "attempt-ended", attempt=1, cause=Path("/a"))
    first, second = read_events(paths)
    assert (first["event"], first["attempt"], first["job_id"]) == ("attempt-started", 1, "7")
    assert second["cause"] == "/a"
    assert first["time"] <= second["time"]
    assert newest_attempt(paths) == 1


def test_a_torn_last_event_is_left_out_and_does_not_harm_the_next(paths: RunPaths):
    append_event(paths, "attempt-started", attempt=1)
    with open(paths.ledger, "a") as ledger:
        ledger.write('{"event": "attempt-en')
    assert [event["event"] for event in read_events(paths)] == ["attempt-started"]
    append_event(paths, "attempt-started", attempt=2)
    assert [event["attempt"] for event in read_events(paths)] == [1, 2]
    assert newest_attempt(paths) == 2


@pytest.mark.parametrize(
    ("event", "details", "without"),
    [
        ("attempt-started", {"attempt": 1}, "attempt"),
        ("attempt-ended", {"attempt": 1}, "attempt"),
        ("submitted", {"job_id": "7"}, "job_id"),
        ("successor", {"job_id": "7"}, "job_id"),
        ("node-bad", {"node": "n1", "reason": "no memory"}, "node"),
        ("node-bad", {"node": "n1", "reason": "no memory"}, "reason"),
        ("stop-criterion-met", {"report": 1, "why": "loss=0 reached 0"}, "report"),
    ],
)
def test_an_event_without_what_it_is_about_is_damaged(
    paths: RunPaths, event: str, details: dict[str, Any], without: str
):
    append_event(paths, event, **details)
    append_event(paths, event, **{k: v for k, v in details.items() if k != without})
    assert len(read_events(paths)) == 1
