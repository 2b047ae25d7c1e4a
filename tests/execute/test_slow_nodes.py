"""The executor asks ranks how long steps take, names slow nodes, and says when that is over."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from hpctrain.control.wire import Frame
from hpctrain.execute.progress import Progress
from hpctrain.execute.rendezvous import WorkerMetadata
from hpctrain.execute.slow_node_policy import SlowNodePolicy
from hpctrain.execute.slow_nodes import SlowNode, SlowNodes
from hpctrain.worker.load import Load
from hpctrain.worker.step_times import StepTimes, encode_step_times

STEP_US = 100_000


class Watched:
    """Three nodes of two ranks that answer when the test wants it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, num_ranks: int = 6) -> None:
        self.now = 1000.0
        monkeypatch.setattr("hpctrain.execute.slow_nodes.time.monotonic", lambda: self.now)
        self.progress = Progress(world_size=num_ranks, first_report=0, now=0.0)
        self.sent: list[tuple[str, Any]] = []
        self.notes: list[dict[str, Any]] = []
        self.times: list[Any] = []
        self.made = 0
        workers = [
            WorkerMetadata(
                rank=rank,
                hostname=f"node{rank // 2}",
                pid=1,
                tmp="/tmp",
                tmp_owner="",
                node_rank=rank // 2,
                local_rank=rank % 2,
            )
            for rank in range(num_ranks)
        ]
        self.slow_nodes = SlowNodes(
            self.progress,
            broadcast=lambda op, ranks=None, after=0: self.sent.append((op, ranks)),
            workers=workers,
            note=lambda event, **details: self.notes.append({"event": event, **details}),
            attempt=3,
            advice=lambda slow: "Do this.",
            on_times=self.times.append,
        )
        for rank in range(num_ranks):
            self.feed("phase", rank, phase="training")

    def feed(self, op: str, rank: int, body: bytes = b"", **details: Any) -> None:
        self.progress.feed(Frame({"op": op, "rank": rank, **details}, body, b""))

    def wait(self, seconds: float) -> list[tuple[str, Any]]:
        """Let time pass; return what ranks are sent then."""
        self.sent.clear()
        self.now += seconds
        self.slow_nodes.step()
        return list(self.sent)

    def answer(
        self, *, steps: int, slow: tuple[int, ...] = (), factor: float = 2.0, cost_us: int = 1000
    ) -> None:
        """Let all ranks answer with some more steps."""
        own = np.full((steps, len(self.progress)), STEP_US)
        own[:, list(slow)] = int(factor * STEP_US)
        for rank in range(len(self.progress)):
            times = [
                StepTimes(self.made + n, int(row.max()), int(row[rank]), int(row[rank]))
                for n, row in enumerate(own, start=1)
            ]
            self.feed("step-times", rank, encode_step_times(times), cost_us=cost_us)
        self.made += steps
        self.slow_nodes.step()

    def name(self, slow: tuple[int, ...]) -> None:
        """Let ranks be slow for long, and answer what holds them up."""
        assert self.wait(60.0) == [("step-times", None)]
        self.sent.clear()
        self.answer(steps=40, slow=slow)
        ((op, asked),) = self.sent
        assert op == "load"
        for rank in asked:
            load = Load(throttled=0.5 if rank in slow else 0.0)
            self.feed("load", rank, json.dumps(load.to_json()).encode())
        self.slow_nodes.step()


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


def test_a_slow_node_is_named_once_with_its_ranks_and_what_it_suffers_from(
    watched: Watched, capsys: pytest.CaptureFixture[str]
) -> None:
    watched.name((2, 3))
    (event,) = watched.notes
    assert event == {
        "event": "node-slow",
        "node": "node1",
        "ranks": [2, 3],
        "factor": 2.0,
        "since_step": 1,
        "step": 40,
        "reason": "its cgroup is throttled 50% of the time (CPU quota)",
        "attempt": 3,
    }
    said = (
        "ranks 2-3 on node1 make every step 2.0 times as long, since step 1 of the attempt: its "
        "cgroup is throttled 50% of the time (CPU quota)"
    )
    assert watched.slow_nodes.text == said
    printed = "".join(capsys.readouterr())
    assert f"{said}. Do this." in printed
    watched.wait(60.0)
    watched.answer(steps=40, slow=(2, 3))
    assert len(watched.notes) == 1
    assert watched.slow_nodes.text == said


def test_times_are_passed_on_whether_a_node_is_slow_or_not(watched: Watched) -> None:
    watched.wait(60.0)
    assert watched.times == []
    watched.answer(steps=2, slow=(1,))
    (times,) = watched.times
    assert times[1][1] == StepTimes(2, 2 * STEP_US, 2 * STEP_US, 2 * STEP_US)
    assert times[0][1] == StepTimes(2, 2 * STEP_US, STEP_US, STEP_US)
    assert sorted(times) == [0, 1, 2, 3, 4, 5]


def test_it_is_said_once_that_it_is_over(watched: Watched) -> None:
    watched.name((0,))
    for _ in range(3):
        watched.wait(60.0)
        watched.answer(steps=40)
    assert [note["event"] for note in watched.notes] == ["node-slow", "node-slow-over"]
    assert watched.slow_nodes.text == ""


def test_a_node_whose_ranks_do_not_say_why_is_named_all_the_same(watched: Watched) -> None:
    watched.wait(60.0)
    watched.answer(steps=40, slow=(5,))
    watched.wait(1.0)
    assert watched.notes == []
    watched.wait(2.0)
    assert [note["reason"] for note in watched.notes] == [""]
    assert "its kernel shows no reason" in watched.slow_nodes.text


def test_ranks_are_asked_as_seldom_as_reading_costs_them_a_1000th_of_their_time(
    watched: Watched,
) -> None:
    watched.wait(60.0)
    watched.answer(steps=40, cost_us=3000)
    assert watched.wait(2.9) == []
    assert watched.wait(0.2) == [("step-times", None)]
    # Without an answer they are not asked again for a minute.
    assert watched.wait(50.0) == []
    watched.wait(11.0)
    assert watched.wait(0.0) == [("step-times", None)]


def test_ranks_that_have_no_times_are_asked_ever_more_seldom(watched: Watched) -> None:
    waits = []
    for _ in range(8):
        waited = 0.5
        while not watched.wait(0.5):
            waited += 0.5
        waits.append(waited)
        for rank in range(6):
            watched.feed("step-times", rank, b"[]", cost_us=10)
        watched.slow_nodes.step()
    assert waits == sorted(waits)
    assert waits[-1] == pytest.approx(30.0, abs=0.5)


def test_a_rank_that_may_be_slow_is_looked_at_soon(watched: Watched) -> None:
    watched.wait(60.0)
    watched.answer(steps=10, cost_us=10_000)
    assert watched.wait(9.5) == []
    watched.wait(1.0)
    watched.answer(steps=12, slow=(1,), cost_us=10_000)
    # Six steps of 200 ms are missing.
    assert watched.wait(1.1) == []
    assert watched.wait(0.2) == [("step-times", None)]
    watched.answer(steps=6, cost_us=10_000)
    # What that has cost is made up for.
    assert watched.wait(19.0) == []
    assert watched.wait(1.5) == [("step-times", None)]


@pytest.mark.parametrize("phase", ["checkpoint", "backend", "shutdown"])
def test_ranks_are_not_asked_while_one_does_not_train(watched: Watched, phase: str) -> None:
    watched.feed("phase", 3, phase=phase)
    assert watched.wait(60.0) == []
    watched.feed("phase", 3, phase="training")
    assert watched.wait(1.0) == [("step-times", None)]


def test_one_rank_is_never_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Watched(monkeypatch, num_ranks=1).wait(60.0) == []


class Policy:
    """A policy, and what it does."""

    def __init__(self, factor: float | None, why_kept: str = "") -> None:
        self.now = 1000.0
        self.notes: list[dict[str, Any]] = []
        self.policy = SlowNodePolicy(
            factor,
            why_kept=lambda slow: why_kept,
            note=lambda event, **details: self.notes.append({"event": event, **details}),
            clock=lambda: self.now,
        )

    def choose(self, **factors: float) -> str | None:
        """Return the node that is left out, of nodes that have been named at 1000 s."""
        slow = {
            node: SlowNode(node=node, node_rank=0, ranks=(0,), factor=factor, since=1, until=9)
            for node, factor in factors.items()
        }
        chosen = self.policy.choose({node: (each, 1000.0) for node, each in slow.items()})
        return None if chosen is None else chosen.node


def test_the_slowest_node_is_left_out_once_it_has_been_slow_for_long() -> None:
    policy = Policy(1.5)
    policy.now = 1029.0
    assert policy.choose(a=1.6, b=1.9) is None
    policy.now = 1031.0
    assert policy.choose() is None
    assert policy.choose(a=1.4) is None
    assert policy.choose(a=1.6, b=1.9) == "b"


def test_no_node_is_left_out_unless_the_configuration_says_so() -> None:
    policy = Policy(None)
    policy.now = 2000.0
    assert policy.choose(a=9.0) is None


def test_a_node_that_the_run_needs_is_kept_and_that_is_said_once() -> None:
    policy = Policy(1.5, "the run needs 4")
    policy.now = 2000.0
    assert policy.choose(a=1.6) is None
    assert policy.choose(a=1.6) is None
    assert policy.notes == [{"event": "node-kept", "node": "a", "reason": "the run needs 4"}]


def test_the_next_node_is_left_out_ten_minutes_later() -> None:
    policy = Policy(1.5)
    policy.now = 2000.0
    policy.policy.note_left_out()
    policy.now = 2599.0
    assert policy.choose(a=1.6) is None
    policy.now = 2601.0
    assert policy.choose(a=1.6) == "a"
