from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpctrain.config import FailureConfig
from hpctrain.control.wire import Frame
from hpctrain.errors import WorkerHangError
from hpctrain.execute.hang import HangWatch, find_culprits
from hpctrain.execute.progress import Progress
from hpctrain.execute.rendezvous import WorkerMetadata
from hpctrain.rundir.paths import RunPaths

COMPUTES = '  File "/x/train.py", line 12 in step\n  File "/x/train.py", line 3 in train'
WAITS = f'  File "/torch/distributed.py", line 9 in all_reduce\n{COMPUTES}'
WAITS_IN_MPI = (
    "with native frames, by py-spy:\nProcess 7: python\n\n"
    'Thread 7 (active): "MainThread"\n'
    "    0x7f983711bf95 (libmpi.so.12)\n    step (train.py:12)\n"
    'Thread 8 (idle): "hpctrain-link"\n    poll (libc.so.6)\n'
)


@pytest.fixture
def progress() -> Progress:
    progress = Progress(world_size=3, first_report=0, now=time.monotonic())
    for rank in range(3):
        feed(progress, "phase", rank, phase="training")
    return progress


def feed(progress: Progress, op: str, rank: int, body: str = "", **details: object) -> None:
    frame = Frame({"op": op, "rank": rank, **details}, body.encode(), b"")
    progress.feed(frame)


@pytest.mark.parametrize(
    ("stacks", "seen", "culprits"),
    [
        pytest.param({0: WAITS, 1: COMPUTES, 2: WAITS}, {}, [1], id="computes"),
        pytest.param({0: WAITS, 1: WAITS, 2: WAITS}, {}, [0, 1, 2], id="all wait"),
        pytest.param(dict.fromkeys(range(3), COMPUTES), {}, [0, 1, 2], id="all compute"),
        pytest.param(
            dict.fromkeys(range(3), COMPUTES), {0: WAITS_IN_MPI, 2: WAITS_IN_MPI}, [1], id="native"
        ),
    ],
)
def test_ranks_that_wait_for_others_are_not_to_blame_if_others_do_not_wait(
    progress: Progress, stacks: dict[int, str], seen: dict[int, str], culprits: list[int]
) -> None:
    for rank, stack in stacks.items():
        feed(progress, "stacks", rank, stack)
    for rank, stack in seen.items():
        feed(progress, "examined", rank, stack, reason="")
    assert find_culprits(progress, [0, 1, 2], []) == culprits


def test_ranks_that_do_not_answer_come_before_those_that_are_behind(progress: Progress) -> None:
    feed(progress, "report", 0)
    feed(progress, "report", 1)
    assert find_culprits(progress, [0, 1, 2], []) == [2]
    assert find_culprits(progress, [0, 1, 2], [1]) == [1]


def test_of_ranks_that_are_behind_those_that_wait_are_not_to_blame(progress: Progress) -> None:
    # Rank 2 has returned; rank 0 waits to receive from rank 1.
    feed(progress, "phase", 2, phase="shutdown")
    feed(progress, "stacks", 0, WAITS.replace("all_reduce", "recv"))
    feed(progress, "stacks", 1, COMPUTES)
    assert find_culprits(progress, [0, 1], []) == [1]


class Ranks:
    """What ranks and their agents answer when they are asked."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.asked: list[str] = []
        self.answer: Callable[[], None] = lambda: None

    def broadcast(self, op: str) -> None:
        self.asked.append(op)
        self.answer()

    def examine(self, pids: Any, silent: Any) -> None:
        self.asked.append(f"examine {sorted(pids)} silent {sorted(silent)}")
        for rank in silent:
            feed(self.progress, "examined", rank, "state: T", reason="its process is stopped")
        for rank in set(pids) - set(silent):
            feed(self.progress, "examined", rank, reason="")


@pytest.fixture
def ranks(progress: Progress) -> Ranks:
    return Ranks(progress)


@pytest.fixture
def make_watch(
    progress: Progress, ranks: Ranks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., HangWatch]:
    monkeypatch.setattr("hpctrain.execute.hang._LOOK_INTERVAL_S", 0.0)
    monkeypatch.setattr("hpctrain.timeouts.STACKS_S", 0.1)
    monkeypatch.setattr("hpctrain.timeouts.SUSPICIOUS_SILENCE_S", 0.2)

    def make(**limits: float | None) -> HangWatch:
        return HangWatch(
            progress,
            config=FailureConfig(**limits),  # type: ignore[arg-type]
            broadcast=ranks.broadcast,
            examine=ranks.examine,
            workers=[
                WorkerMetadata(
                    rank=r,
                    hostname=f"n{r}",
                    pid=100 + r,
                    tmp="/tmp",
                    tmp_owner="",
                    node_rank=r,
                    local_rank=0,
                )
                for r in range(3)
            ],
            paths=RunPaths(tmp_path),
            attempt=1,
            checkpoint=lambda: None,
            note=lambda *_, **__: None,
        )

    return make


def step_for(watch: HangWatch, progress: Progress, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        progress.listen(time.monotonic())
        watch.step()
        time.sleep(0.005)


def test_who_does_not_answer_is_looked_at_from_outside_and_named(
    progress: Progress, ranks: Ranks, make_watch: Callable[..., HangWatch]
) -> None:
    def answer() -> None:
        for rank in (0, 2):
            feed(progress, "stacks", rank, WAITS)

    ranks.answer = answer
    watch = make_watch(hang_timeout_s=0.2)
    with pytest.raises(WorkerHangError) as caught:
        step_for(watch, progress, 5.0)
    assert ranks.asked == ["dump-stacks", "examine [0, 1, 2] silent [1]"]
    message = str(caught.value)
    assert message.startswith("rank 1 of 3 on n1 hangs in phase training, after report 0: no prog")
    assert "; its process is stopped\n" in message
    assert "2 other ranks in phase training, after report 0, waiting for others" in message
    assert "  Limit of the time without progress: FailureConfig(hang_timeout_s=0.2)\n" in message
    (failure,) = watch.failures(caught.value)
    assert (failure.rank, failure.pid, failure.type) == (1, 101, "WorkerHangError")
    assert "its process is stopped" in failure.message


def test_who_stopped_a_little_later_than_those_that_wait_for_it_is_named(
    progress: Progress, ranks: Ranks, make_watch: Callable[..., HangWatch]
) -> None:
    def answer() -> None:
        for rank, stack in enumerate((WAITS, COMPUTES, WAITS)):
            feed(progress, "stacks", rank, stack)

    ranks.answer = answer
    watch = make_watch(hang_timeout_s=0.5)
    step_for(watch, progress, 0.2)
    feed(progress, "heartbeat", 1)
    with pytest.raises(WorkerHangError, match=r"^rank 1 of 3") as caught:
        step_for(watch, progress, 5.0)
    assert caught.value.rank == 1


def test_ranks_that_go_on_while_they_are_asked_do_not_hang(
    progress: Progress, ranks: Ranks, make_watch: Callable[..., HangWatch]
) -> None:
    def answer() -> None:
        for rank in range(3):
            feed(progress, "stacks", rank, COMPUTES)
            feed(progress, "report", rank)

    ranks.answer = answer
    watch = make_watch(hang_timeout_s=0.3)
    step_for(watch, progress, 1.0)
    assert len(ranks.asked) >= 2, "it is asked again at the next silence"
    assert watch.stalled == ""


def test_a_suspicion_is_told_once_and_forgotten_when_all_go_on(
    progress: Progress, ranks: Ranks, make_watch: Callable[..., HangWatch]
) -> None:
    watch = make_watch(hang_timeout_s=None)
    step_for(watch, progress, 1.0)
    assert ranks.asked == ["dump-stacks", "examine [0, 1, 2] silent [0, 1, 2]"]
    assert watch.stalled.startswith("all 3 ranks hang")
    for rank in range(3):
        feed(progress, "report", rank)
    step_for(watch, progress, 0.05)
    assert watch.stalled == ""


@pytest.mark.parametrize("hang_timeout_s", [None, 100.0])
def test_a_start_that_takes_too_long_ends_even_where_a_hang_in_training_does_not(
    progress: Progress, make_watch: Callable[..., HangWatch], hang_timeout_s: float | None
) -> None:
    for rank in (0, 1, 2):
        feed(progress, "phase", rank, phase="backend")
    with pytest.raises(WorkerHangError, match="in phase backend") as caught:
        step_for(make_watch(hang_timeout_s=hang_timeout_s, start_timeout_s=0.2), progress, 5.0)
    assert "without progress: FailureConfig(start_timeout_s=0.2)\n" in str(caught.value)


def test_who_is_left_behind_is_named_once_and_a_later_hang_is_still_one(
    progress: Progress,
    ranks: Ranks,
    make_watch: Callable[..., HangWatch],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hpctrain.timeouts.LEFT_BEHIND_S", 0.1)
    ranks.answer = lambda: feed(progress, "stacks", 1, COMPUTES)
    watch = make_watch(hang_timeout_s=1.0)
    for rank in (0, 2):
        feed(progress, "phase", rank, phase="shutdown")
    step_for(watch, progress, 0.4)
    assert ranks.asked == ["dump-stacks"]
    assert watch.stalled.splitlines()[0].startswith(
        "ranks 0,2 have returned, but rank 1 on n1 is still in the training function"
    )
    assert "After 1 s without progress it is ended" in watch.stalled
    # It goes on, and is not named again.
    feed(progress, "report", 1)
    step_for(watch, progress, 0.05)
    assert watch.stalled == ""
    step_for(watch, progress, 0.3)
    assert ranks.asked == ["dump-stacks"]
    with pytest.raises(WorkerHangError, match=r"^rank 1 of 3 on n1 hangs"):
        step_for(watch, progress, 5.0)


def test_of_a_rank_left_behind_that_does_not_answer_the_agent_says_why(
    progress: Progress,
    ranks: Ranks,
    make_watch: Callable[..., HangWatch],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hpctrain.timeouts.LEFT_BEHIND_S", 0.1)
    watch = make_watch(hang_timeout_s=None)
    monkeypatch.setattr("hpctrain.timeouts.SUSPICIOUS_SILENCE_S", 100.0)
    watch._training_s = 100.0
    feed(progress, "done", 0)
    feed(progress, "report", 2)
    step_for(watch, progress, 0.6)
    assert ranks.asked == ["dump-stacks", "examine [1, 2] silent [1, 2]"]
    assert "its process is stopped" in watch.stalled
