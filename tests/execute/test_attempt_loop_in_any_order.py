"""The loop over an attempt with frames, deaths, signals and clocks in any order: it ends, once."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from hpctrain.callback import RunContext, UserCallback
from hpctrain.config import RunConfig
from hpctrain.control.wire import Frame
from hpctrain.errors import RunStoppedError, WorkerError
from hpctrain.execute import attempt_executor
from hpctrain.execute.attempt_executor import AttemptExecutor
from hpctrain.execute.attempt_loop import AttemptLoop
from hpctrain.execute.executor_record import UnwrittenRecord
from hpctrain.execute.recorder import Recorder
from hpctrain.execute.stop import StopAgreement
from hpctrain.execute.stop_decision import StopKind, StopNotice
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus
from hpctrain.testing.fake_ranks import FakeRanks
from hpctrain.testing.scripted_rank import ScriptedRank

ORDERS = 10_000
MAX_POLLS = 5_000
REASONS = (StopKind.REQUEST, StopKind.TIME_LIMIT, StopKind.TOTAL_TIME)


class Clock:
    """Time that passes when somebody waits."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


class Reports(UserCallback):
    """Takes note of what was recorded, and of failures."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.failures: list[set[int]] = []

    def after_report(self, run_context: RunContext, metrics: Any, checkpoint: Any) -> None:
        self.numbers.append(run_context.report)

    def after_exception(self, run_context: RunContext, worker_exceptions: Any) -> None:
        self.failures.append(set(worker_exceptions))


class RanksInSomeOrder(FakeRanks):
    """Ranks that go on by a little whenever they are polled, and die if they are to."""

    def __init__(self, draw: random.Random, clock: Clock) -> None:
        how: dict[str, Any] = {
            "steps": draw.randint(0, 12),
            "asks_every": draw.choice([0, 1, 1, 2]),
            "obeys": draw.random() < 0.7,
            "saves": draw.random() < 0.5,
        }
        super().__init__(draw.randint(1, 4))
        self.ranks = [ScriptedRank(number, **how) for number in range(len(self))]
        self.dies_at = {
            rank: draw.randint(0, 60) for rank in range(len(self)) if draw.random() < 0.2
        }
        self.dead: set[int] = set()
        self.over: set[int] = set()
        self.polls = 0
        self._draw = draw
        self._clock = clock
        for rank in range(len(self)):
            self.send("phase", rank, phase="training")

    def broadcast(self, op: str, body: bytes = b"", **details: Any) -> None:
        if op in ("freeze", "stop"):
            for rank in self.ranks:
                rank.send(op, **details)

    def poll(self, timeout_s: float) -> list[Frame]:
        self.polls += 1
        assert self.polls < MAX_POLLS, f"it does not end: {[rank.did for rank in self.ranks]}"
        draw = self._draw
        self._clock.now += timeout_s * draw.random()
        frames = super().poll(timeout_s)
        # Not `randint` and `randrange`, which take longer than all that they decide here.
        for _ in range(int(7 * draw.random())):
            number = int(len(self) * draw.random())
            rank = self.ranks[number]
            if number in self.dead:
                continue
            what = draw.random()
            if what < 0.5:
                if number not in self.over and rank.train():
                    self.over.add(number)
            elif what < 0.75:
                rank.receive()
            else:
                frames += self._received(rank, to_the_end=False)
        for number in sorted(self.dies_at.keys() - self.dead - self.over):
            if self.polls >= self.dies_at[number]:
                self.dead.add(number)
                # What it sent before arrives.
                frames += self._received(self.ranks[number], to_the_end=True)
                if draw.random() < 0.5:
                    self.fail(number, "it fails")
                self.send("lost", number)
        return frames

    def examine(self, pids: Mapping[int, int], silent: Sequence[int]) -> None:
        """Do nothing: no frame comes back in the short time that passes here."""

    def _received(self, rank: ScriptedRank, *, to_the_end: bool) -> list[Frame]:
        frames = []
        while (to_the_end or self._draw.random() < 0.8) and (frame := rank.take_frame()):
            frames.append(frame)
        return frames


class Reasons:
    """Stands for a `Preemption`: at some time the run is to leave."""

    def __init__(self, draw: random.Random, recorder: Recorder) -> None:
        self._recorder = recorder
        self._due = {kind: draw.randint(0, 80) for kind in REASONS if draw.random() < 0.2}
        self._turn = 0

    def step(self) -> None:
        self._turn += 1
        for kind, at in self._due.items():
            if self._turn >= at:
                self._recorder.request_stop(StopNotice(kind=kind, why=kind.value))


def run_in_some_order(seed: int, root: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run an attempt; return how it ended, in a word."""
    draw, clock, seen = random.Random(seed), Clock(), Reports()
    monkeypatch.setattr(attempt_executor, "time", clock)
    status = RunStatus(name="run", state=RunState.RUNNING, launcher="local", attempt=1)
    config = RunConfig(name="run", callbacks=[seen])
    # What is tried here is the order of things, and not the disk.
    recorder = Recorder(
        paths=RunPaths(root), run_config=config, status=status, record_cls=UnwrittenRecord
    )
    kept: list[bytes] = []
    monkeypatch.setattr(recorder, "keep_return_value", lambda value, notified: kept.append(value))
    ranks = RanksInSomeOrder(draw, clock)
    attempt = AttemptExecutor(ranks)
    loop = AttemptLoop(
        recorder,
        attempt,
        preemption=Reasons(draw, recorder),  # type: ignore[arg-type]
        stopping=StopAgreement(recorder, attempt.tracker, ranks.broadcast),
        failure_config=config.failure_config,
    )
    error: Exception | None = None
    loop.run()
    try:
        loop.conclude()
    except (RunStoppedError, WorkerError) as raised:
        error = raised
    # In order, and none left out.
    assert seen.numbers == list(range(1, len(seen.numbers) + 1))
    if ranks.dead:
        assert isinstance(error, WorkerError)
        assert error.rank in ranks.dead
        assert seen.failures == [set(error.worker_failures)]
        assert kept == []
        return "failed"
    did = ranks.ranks[0].did
    assert [rank.did for rank in ranks.ranks] == [did] * len(ranks)
    assert seen.numbers == list(range(1, did[-1][1] + 1))
    assert len(kept) == 1
    if isinstance(error, RunStoppedError):
        assert recorder.stop is not None
        return "stopped"
    assert did[-1][0] == "came to its end"
    return "finished"


def test_an_attempt_ends_once_and_rightly_in_whatever_order_things_happen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    ends = dict.fromkeys(("failed", "stopped", "finished"), 0)
    for seed in range(ORDERS):
        with monkeypatch.context() as patch:
            try:
                ends[run_in_some_order(seed, tmp_path, patch)] += 1
            except Exception as error:
                error.add_note(f"seed {seed}")
                raise
    # Or it would show nothing.
    assert min(ends.values()) > ORDERS // 50, ends
