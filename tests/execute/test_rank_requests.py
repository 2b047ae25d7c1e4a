from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpctrain.config import CheckpointConfig
from hpctrain.control.wire import Frame
from hpctrain.execute.executor_record import ExecutorRecord
from hpctrain.execute.rank_requests import RankRequests
from hpctrain.execute.run_checkpoints import RunCheckpoints
from hpctrain.execute.tracker import AttemptTracker
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus


class Asked:
    """Ranks that ask, what answers them, and what they are sent."""

    def __init__(self, root: Path, *, max_writers: int | None) -> None:
        paths = RunPaths(root)
        paths.checkpoints.mkdir()
        record = ExecutorRecord(
            paths, RunStatus(name="run", state=RunState.RUNNING, launcher="local")
        )
        self.checkpoints = RunCheckpoints(record, CheckpointConfig())
        self.requests = RankRequests(record, self.checkpoints, max_writers=max_writers)
        self.requests.begin_attempt()
        self.tracker = AttemptTracker(world_size=3, first_report=0)
        self.sent: list[tuple[str, dict[str, Any]]] = []

    def slot(self, rank: int, *, wanted: bool = True) -> None:
        header = {"op": "slot", "rank": rank, "number": 1, "wanted": wanted}
        self.tracker.feed(Frame(header, b"", b""))

    def answer(self, recorded: int = 0) -> list[tuple[str, dict[str, Any]]]:
        self.sent.clear()
        self.requests.answer(
            self.tracker,
            lambda op, body=b"", **details: self.sent.append((op, details)),
            recorded=recorded,
        )
        return self.sent


@pytest.fixture
def asked(tmp_path: Path) -> Asked:
    return Asked(tmp_path, max_writers=1)


def test_slots_are_granted_in_turn_up_to_the_limit(asked: Asked):
    for rank in (2, 0):
        asked.slot(rank)
    assert asked.answer() == [("slot", {"ranks": [2], "number": 1})]
    assert asked.answer() == []
    asked.slot(2, wanted=False)
    assert asked.answer() == [("slot", {"ranks": [0], "number": 1})]


def test_without_a_limit_all_are_granted_at_once(tmp_path: Path):
    asked = Asked(tmp_path, max_writers=None)
    for rank in (0, 1, 2):
        asked.slot(rank)
    assert asked.answer() == [("slot", {"ranks": [0, 1, 2], "number": 1})]


def test_slots_of_ranks_that_are_gone_are_free_in_the_next_attempt(asked: Asked):
    asked.slot(2)
    asked.answer()
    asked.requests.begin_attempt()
    asked.slot(0)
    assert asked.answer() == [("slot", {"ranks": [0], "number": 1})]


def test_checkpoints_are_listed_once_the_reports_are_recorded(asked: Asked):
    asked.tracker.asked = {1, 2}
    assert asked.answer(recorded=0) == []
    assert asked.answer(recorded=1) == [("checkpoints", {"report": 1})]
    assert asked.tracker.asked == {2}
    assert asked.answer(recorded=1) == []


def test_a_list_that_cannot_be_read_is_sent_later(
    asked: Asked, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def away() -> bytes:
        raise OSError(116, "Stale file handle")

    asked.tracker.asked = {1}
    with monkeypatch.context() as outage:
        outage.setattr(asked.checkpoints, "describe", away)
        assert asked.answer(recorded=1) == []
    assert "cannot write checkpoints/" in capsys.readouterr().err
    assert asked.answer(recorded=1) == [("checkpoints", {"report": 1})]
