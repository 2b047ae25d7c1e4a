"""The stop agreement with its ranks and messages in any order: all leave after the same report."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from hpctrain.config import RunConfig
from hpctrain.control.wire import Frame
from hpctrain.execute import stop as stop_module
from hpctrain.execute.recorder import Recorder
from hpctrain.execute.scaling_policy import Resize, ScalingPolicy
from hpctrain.execute.stop import StopAgreement
from hpctrain.execute.stop_decision import StopKind, StopNotice
from hpctrain.execute.tracker import AttemptTracker
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus
from hpctrain.testing.scripted_rank import ScriptedRank

MAX_TURNS = 20_000
REASONS = (StopKind.GOAL, StopKind.REQUEST, StopKind.TIME_LIMIT, StopKind.TOTAL_TIME)


class NodesComeBack:
    """Stands for `Growth.can_grow`; it says so once, at some time."""

    def __init__(self, after: float) -> None:
        self._looks_left = after

    def can_grow(self) -> bool:
        self._looks_left -= 1
        return self._looks_left == 0


def run_in_some_order(seed: int, recorder: Recorder) -> None:
    draw = random.Random(seed)
    how: dict[str, Any] = {
        "steps": draw.randint(3, 30),
        "asks_every": draw.choice([0, 1, 1, 2, 3]),
        "obeys": draw.random() < 0.7,
        "saves": draw.random() < 0.5,
    }
    ranks = [ScriptedRank(number, **how) for number in range(draw.randint(1, 4))]
    speeds = [0.05 + draw.random() for _ in ranks]
    tracker = AttemptTracker(world_size=len(ranks), first_report=0)
    for number, _ in enumerate(ranks):
        tracker.feed(Frame({"op": "phase", "rank": number, "phase": "training"}, b"", b""))

    def broadcast(op: str, **details: Any) -> None:
        for rank in ranks:
            rank.send(op, **details)

    agreement = StopAgreement(recorder, tracker, broadcast)
    nodes = NodesComeBack(draw.randint(1, 30))
    scaling_policy = ScalingPolicy(recorder, tracker, agreement, can_grow=nodes.can_grow)
    reasons = {kind: draw.randint(0, 600) for kind in draw.sample(REASONS, draw.randint(0, 2))}
    signal_at = draw.choice([None, None, None, draw.randint(0, 300)])
    trains = set(range(len(ranks)))
    turn = 0
    while not tracker.is_done:
        turn += 1
        assert turn < MAX_TURNS, f"nobody goes on: {[rank.did for rank in ranks]}"
        what, number = draw.random(), draw.randrange(len(ranks))
        if what < 0.6:
            if number in trains and draw.random() < speeds[number] and ranks[number].train():
                trains.discard(number)
        elif what < 0.8:
            ranks[number].receive()
        elif what < 0.9:
            while draw.random() < 0.8 and (frame := ranks[number].take_frame()) is not None:
                tracker.feed(frame)
        else:
            for kind, at in reasons.items():
                if turn >= at:
                    recorder.request_stop(StopNotice(kind=kind, why=kind.value))
            if signal_at is not None and turn >= signal_at and not tracker.signals:
                tracker.feed(Frame({"op": "signal", "rank": 0, "name": "SIGTERM"}, b"", b""))
            scaling_policy.step()

    did = ranks[0].did
    assert [rank.did for rank in ranks] == [did] * len(ranks)
    assert tracker.unmatched_calls() is None
    makes_room = False
    try:
        scaling_policy.conclude()
    except Resize:
        makes_room = True
    if did[-1][0] != "came to its end":
        assert makes_room or recorder.stop is not None, f"a run that was told has ended: {did}"


@pytest.mark.parametrize("doubt_s", [0.0, 100.0], ids=["signals-are-believed", "or-doubted"])
def test_all_ranks_leave_after_the_same_report_in_whatever_order_things_happen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, doubt_s: float
):
    monkeypatch.setattr(stop_module, "_TERM_DOUBT_S", doubt_s)
    status = RunStatus(name="run", state=RunState.RUNNING, launcher="slurm")
    for seed in range(2000):
        recorder = Recorder(paths=RunPaths(tmp_path), run_config=RunConfig(), status=status)
        try:
            run_in_some_order(seed, recorder)
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise
