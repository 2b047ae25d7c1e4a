from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpctrain.checkpoint import Checkpoint
from hpctrain.config import RunConfig
from hpctrain.control.wire import Frame
from hpctrain.errors import RunStoppedError
from hpctrain.execute.recorder import Recorder
from hpctrain.execute.scaling_policy import Resize, ScalingPolicy
from hpctrain.execute.slow_nodes import SlowNode
from hpctrain.execute.stop import StopAgreement
from hpctrain.execute.stop_decision import StopKind, StopNotice
from hpctrain.execute.tracker import AttemptTracker
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus


class NodesAreBack:
    """Stands for `Growth.can_grow`; it says so once."""

    def __init__(self, back: bool = True) -> None:
        self._back = back

    def can_grow(self) -> bool:
        back, self._back = self._back, False
        return back


class Attempt:
    def __init__(self, path: Path, *, back: bool = True, slow: SlowNode | None = None) -> None:
        status = RunStatus(name="run", state=RunState.RUNNING, launcher="slurm")
        paths = RunPaths(path)
        self.recorder = Recorder(paths=paths, run_config=RunConfig(), status=status)
        self.tracker = AttemptTracker(world_size=2, first_report=0)
        self.say("phase", phase="training")
        self.sent: list[str] = []
        stop = StopAgreement(self.recorder, self.tracker, lambda op, **_: self.sent.append(op))
        self.scaling_policy = ScalingPolicy(
            self.recorder,
            self.tracker,
            stop,
            can_grow=NodesAreBack(back).can_grow,
            slow_node=lambda: slow,
        )

    def say(self, op: str, **details: Any) -> None:
        for rank in (0, 1):
            body = b'{"metrics":{}}' if op == "report" else b""
            self.tracker.feed(Frame({"op": op, "rank": rank, **details}, body, b""))

    def agree_on(self, report: int) -> None:
        self.scaling_policy.step()
        self.say("frozen", report=report - 1)
        self.scaling_policy.step()
        assert self.sent == ["freeze", "stop"]


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    return Attempt(tmp_path)


def test_ranks_that_return_where_they_were_told_make_room(attempt: Attempt):
    attempt.agree_on(1)
    attempt.say("report")
    attempt.say("done", reports=1, notified=True)
    with pytest.raises(Resize):
        attempt.scaling_policy.conclude()
    assert attempt.recorder.stop is None


def test_ranks_that_come_to_their_end_before_have_finished(attempt: Attempt):
    attempt.agree_on(1)
    attempt.say("done", reports=0)
    attempt.scaling_policy.conclude()
    assert attempt.recorder.stop is None


def test_a_rank_that_fails_meanwhile_leaves_no_wish_to_stop_behind(attempt: Attempt):
    with attempt.scaling_policy:
        attempt.scaling_policy.step()
        assert attempt.recorder.stop is not None
    assert attempt.recorder.stop is None


def test_a_signal_from_outside_comes_before_the_wish_to_grow(attempt: Attempt):
    attempt.scaling_policy.step()
    attempt.tracker.feed(Frame({"op": "signal", "rank": 0, "name": "SIGUSR2"}, b"", b""))
    attempt.scaling_policy.step()
    attempt.say("done", reports=0)
    attempt.scaling_policy.conclude()
    assert attempt.recorder.stop is not None
    assert attempt.recorder.stop.kind is StopKind.PREEMPTION


def test_ranks_that_get_a_signal_while_they_make_room_have_not_finished(attempt: Attempt):
    attempt.agree_on(1)
    attempt.say("report")
    attempt.tracker.feed(Frame({"op": "signal", "rank": 0, "name": "SIGTERM"}, b"", b""))
    # Before it is sure that the signal is not srun's, which one whose rank has died sends.
    attempt.scaling_policy.step()
    attempt.say("done", reports=1, notified=True)
    attempt.scaling_policy.conclude()
    with pytest.raises(RunStoppedError, match="its ranks got SIGTERM"):
        attempt.recorder.raise_if_unfinished(1, notified=attempt.tracker.was_notified)


def test_ranks_that_never_ask_are_ended_after_a_checkpoint_of_their_own(
    attempt: Attempt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("hpctrain.timeouts.STOP_AGREEMENT_S", -1.0)
    for _ in range(3):
        attempt.scaling_policy.step()
    attempt.recorder.checkpoints.latest = Checkpoint(tmp_path)
    with pytest.raises(Resize):
        attempt.scaling_policy.step()


def test_a_checkpoint_in_the_moment_of_a_signal_makes_no_room(
    attempt: Attempt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("hpctrain.timeouts.STOP_AGREEMENT_S", -1.0)
    attempt.scaling_policy.step()
    attempt.tracker.feed(Frame({"op": "signal", "rank": 0, "name": "SIGTERM"}, b"", b""))
    attempt.recorder.checkpoints.latest = Checkpoint(tmp_path)
    attempt.scaling_policy.step()
    assert attempt.recorder.decision.reason == "its ranks got SIGTERM"


def test_ranks_that_have_come_to_their_end_need_no_reason(tmp_path: Path):
    attempt = Attempt(tmp_path, back=False)
    attempt.tracker.feed(Frame({"op": "signal", "rank": 0, "name": "SIGTERM"}, b"", b""))
    attempt.say("done", reports=0)
    attempt.scaling_policy.conclude()
    assert attempt.recorder.stop is None


def test_without_a_wish_to_grow_a_stop_is_a_stop(tmp_path: Path, monkeypatch):
    attempt = Attempt(tmp_path, back=False)
    monkeypatch.setattr("hpctrain.timeouts.STOP_AGREEMENT_S", -1.0)
    attempt.recorder.request_stop(StopNotice(kind=StopKind.REQUEST, why="it was asked to"))
    with pytest.raises(RunStoppedError):
        attempt.scaling_policy.step()


SLOW = SlowNode(node="node2", node_rank=1, ranks=(1,), factor=1.9, since=5, until=40)


def test_ranks_leave_so_that_the_next_attempt_has_no_slow_node(tmp_path: Path):
    attempt = Attempt(tmp_path, back=False, slow=SLOW)
    attempt.agree_on(1)
    assert attempt.recorder.decision.reason == str(SLOW)
    attempt.say("report")
    attempt.say("done", reports=1, notified=True)
    with pytest.raises(Resize, match="rank 1 on node2 makes every step") as raised:
        attempt.scaling_policy.conclude()
    assert raised.value.without is SLOW
    assert attempt.recorder.stop is None


def test_ranks_that_end_before_have_finished_with_the_slow_node(tmp_path: Path):
    attempt = Attempt(tmp_path, back=False, slow=SLOW)
    attempt.agree_on(1)
    attempt.say("done", reports=0)
    attempt.scaling_policy.conclude()
    assert attempt.recorder.stop is None


def test_nodes_that_are_back_come_before_a_slow_one(tmp_path: Path):
    attempt = Attempt(tmp_path, slow=SLOW)
    attempt.agree_on(1)
    attempt.say("report")
    attempt.say("done", reports=1, notified=True)
    with pytest.raises(Resize, match="are back") as raised:
        attempt.scaling_policy.conclude()
    assert raised.value.without is None
