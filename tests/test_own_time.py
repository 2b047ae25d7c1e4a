from __future__ import annotations

import threading

import pytest

from hpctrain import own_time
from hpctrain.own_time import Deadline, OwnTime, wait_for


class Clock:
    """A clock that goes on when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_time_goes_on_while_a_process_looks_at_it() -> None:
    time = OwnTime(100.0)
    assert [time.look(100.0 + 0.25 * n) for n in range(5)] == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert time.now == 1.0


@pytest.mark.parametrize(("stood_still_s", "counts"), [(0.9, 0.9), (45.0, 1.0), (1e6, 1.0)])
def test_of_a_standstill_only_a_moment_counts(stood_still_s: float, counts: float) -> None:
    time = OwnTime(0.0)
    time.look(0.5)
    time.look(0.5 + stood_still_s)
    assert time.look(0.75 + stood_still_s) == pytest.approx(0.75 + counts)


def test_who_looks_seldom_can_say_so() -> None:
    time = OwnTime(0.0, longest_gap_s=3.0)
    assert [time.look(2.5), time.look(5.0), time.look(50.0)] == [2.5, 5.0, 8.0]


def test_a_deadline_moves_on_with_a_standstill() -> None:
    clock = Clock()
    deadline = Deadline(5.0, clock=clock)
    clock.now += 0.5
    assert deadline.left_s == 4.5
    clock.now += 3600.0
    assert deadline.left_s == 3.5
    for _ in range(4):
        clock.now += 0.75
        assert not deadline.is_over
    clock.now += 0.5
    assert deadline.is_over


def test_a_wait_ends_with_what_was_waited_for_or_with_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(own_time, "LOOK_INTERVAL_S", 0.01)
    condition, found = threading.Condition(), [False]
    with condition:
        assert not wait_for(condition, lambda: found[0], 0.05)

    def find() -> None:
        with condition:
            found[0] = True
            condition.notify_all()

    with condition:
        thread = threading.Thread(target=find)
        thread.start()
        assert wait_for(condition, lambda: found[0], 60.0)
    thread.join()
