"""The stop agreement with its ranks and messages in any order: all leave after the same report."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpctrain.config import RunConfig
from hpctrain.control.wire import Frame
from hpctrain.execute import stop as stop_module
from hpctrain.execute.failure_policy import StopKind, StopNotice
from hpctrain.execute.growth import Growth, Resize
from hpctrain.execute.recorder import Recorder
from hpctrain.execute.stop import StopAgreement
from hpctrain.execute.tracker import AttemptTracker
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.status import RunState, RunStatus
from hpctrain.worker.report_count import LeaveTraining, ReportCount

MAX_TURNS = 20_000
REASONS = (StopKind.GOAL, StopKind.REQUEST, StopKind.TIME_LIMIT, StopKind.TOTAL_TIME)


class Rank:
    """A rank whose training function, and the thread of whose link, take a step when asked to."""

    def __init__(self, number: int, *, steps: int, asks_every: int, obeys: bool, saves: bool):
        self._number = number
        self._count = ReportCount(rank=number, first=0, timeout_s=0)
        self._commands: deque[tuple[str, dict[str, Any]]] = deque()
        self._frames: deque[Frame] = deque()
        self.did: list[tuple[str, int]] = []
        self.is_frozen = False
        self._training = self._train(steps, asks_every, obeys, saves)

    def send(self, op: str, **details: Any) -> None:
        self._commands.append((op, details))

    def _say(self, op: str, **details: Any) -> None:
        body = b'{"metrics":{}}' if op == "report" else b""
        self._frames.append(Frame({"op": op, "rank": self._number, **details}, body, b""))

    def _report(self) -> Iterator[None]:
        while self.is_frozen:
            yield
        self._count.begin()
        self._say("report")
        yield

    def _train(self, steps: int, asks_every: int, obeys: bool, saves: bool) -> Iterator[None]:
        try:
            for step in range(1, steps + 1):
                yield from self._report()
                if not asks_every or step % asks_every:
                    continue
                is_told = self._count.should_stop_after(self._count.begun)
                self.did.append(("was told" if is_told else "goes on", step))
                yield
                if is_told and obeys:
                    if saves:
                        yield from self._report()
                    self.did.append(("left", self._count.begun))
                    return
            self.did.append(("came to its end", self._count.begun))
        except LeaveTraining:
            self.did.append(("was unwound", self._count.begun))

    def train(self) -> bool:
        """Go on by a little; return whether the training function has returned."""
        try:
            next(self._training)
        except StopIteration:
            self._say("returned", reports=self._count.begun, meetings=0)
            self._say("done", told=self._count.was_told)
            return True
        return False

    def hear(self) -> None:
        """Take in the next command."""
        if not self._commands:
            return
        op, details = self._commands.popleft()
        if op == "freeze":
            self.is_frozen = True
            self._say("frozen", report=self._count.freeze())
        else:
            self._count.stop_after(details["report"], unwind=details["unwind"])
            self.is_frozen = False

    def take_frame(self) -> Frame | None:
        return self._frames.popleft() if self._frames else None


class NodesComeBack:
    """Stands for an `Allotment`; it says so once, at some time."""

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
    ranks = [Rank(number, **how) for number in range(draw.randint(1, 4))]
    speeds = [0.05 + draw.random() for _ in ranks]
    tracker = AttemptTracker(world_size=len(ranks), first_report=0)
    for number, _ in enumerate(ranks):
        tracker.feed(Frame({"op": "phase", "rank": number, "phase": "training"}, b"", b""))

    def broadcast(op: str, **details: Any) -> None:
        for rank in ranks:
            rank.send(op, **details)

    agreement = StopAgreement(recorder, tracker, broadcast)
    nodes = NodesComeBack(draw.randint(1, 30))
    growth = Growth(recorder, tracker, nodes, agreement)  # type: ignore[arg-type]
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
            ranks[number].hear()
        elif what < 0.9:
            while draw.random() < 0.8 and (frame := ranks[number].take_frame()) is not None:
                tracker.feed(frame)
        else:
            for kind, at in reasons.items():
                if turn >= at:
                    recorder.ask_to_stop(StopNotice(kind=kind, why=kind.value))
            if signal_at is not None and turn >= signal_at and not tracker.signals:
                tracker.feed(Frame({"op": "signal", "rank": 0, "name": "SIGTERM"}, b"", b""))
            growth.step()

    did = ranks[0].did
    assert [rank.did for rank in ranks] == [did] * len(ranks)
    assert tracker.unmatched_calls() is None
    makes_room = False
    try:
        growth.conclude()
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
