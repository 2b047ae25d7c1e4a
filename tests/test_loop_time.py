"""What a training loop waits for, on a clock that goes on when the test says so."""

from __future__ import annotations

import json
import threading
import weakref
from collections.abc import Iterator

import pytest

from hpctrain import loop_time
from hpctrain.loop_time import (
    CHECKPOINT,
    COLLECTIVE,
    DATA,
    LoopTime,
    count_in,
    timed,
    waiting,
)


class Clock:
    """Nanoseconds, of which tests count milliseconds."""

    def __init__(self) -> None:
        self.now = 5_000_000

    def __call__(self) -> int:
        return self.now

    def go_on(self, milliseconds: float) -> None:
        self.now += round(milliseconds * 1e6)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(loop_time, "perf_counter_ns", clock)
    return clock


@pytest.fixture
def loop(clock: Clock) -> Iterator[LoopTime]:
    loop = LoopTime()
    loop.start()
    count_in(loop)
    yield loop
    count_in(None)


def waited(loop: LoopTime) -> list[float | None]:
    return [None if each is None else each / 1000 for each in in_microseconds(loop)]


def in_microseconds(loop: LoopTime) -> list[int | None]:
    found: list[int | None] = json.loads(b'{%s"metrics":{}}' % loop.encode())["waited"]
    return found


class Batches:
    """Each takes some time."""

    def __init__(self, clock: Clock, *takes: int) -> None:
        self._clock, self._takes = clock, iter(takes)

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> set[int]:
        taken = next(self._takes)
        self._clock.go_on(taken)
        return {taken}


def test_the_loop_waits_for_batches_and_not_between_them(loop: LoopTime, clock: Clock) -> None:
    assert waited(loop) == [None, 0, 0]
    for _ in timed(Batches(clock, 20, 30)):
        clock.go_on(1000)
    assert waited(loop) == [50, 0, 0]


def test_what_a_wait_contains_belongs_to_it(loop: LoopTime, clock: Clock) -> None:
    batches = timed(timed(Batches(clock, 7, 8)))
    next(batches)
    with loop.waiting(CHECKPOINT):
        clock.go_on(100)
        with loop.waiting(COLLECTIVE):
            clock.go_on(10)
        next(batches)
        clock.go_on(1)
    with loop.waiting(COLLECTIVE):
        clock.go_on(3)
    with waiting(CHECKPOINT):
        clock.go_on(6)
    assert waited(loop) == [7, 125, 3]


def test_a_wait_that_goes_on_counts_up_to_now(loop: LoopTime, clock: Clock) -> None:
    with loop.waiting(CHECKPOINT):
        clock.go_on(40)
        assert waited(loop) == [None, 40, 0]
        clock.go_on(2)
    clock.go_on(500)
    assert waited(loop) == [None, 42, 0]


def test_waits_are_exact_to_a_millisecond_in_all_and_never_too_long(
    loop: LoopTime, clock: Clock
) -> None:
    for step in range(1, 2000):
        with loop.waiting(CHECKPOINT):
            clock.go_on(0.01)
        with loop.waiting(COLLECTIVE):
            clock.go_on(0.07)
        data, *told = in_microseconds(loop)
        assert data is None
        assert 0 <= 80 * step - sum(filter(None, told)) <= 1000


def test_data_is_seen_at_once(loop: LoopTime, clock: Clock) -> None:
    assert waited(loop) == [None, 0, 0]
    batches = timed(Batches(clock))
    assert waited(loop) == [0, 0, 0]
    assert list(batches) == []


def test_an_error_ends_the_wait(loop: LoopTime, clock: Clock) -> None:
    def fail() -> Iterator[int]:
        clock.go_on(9)
        raise OSError("no disk")
        yield 1

    with pytest.raises(OSError, match="no disk"):
        next(timed(fail()))
    clock.go_on(1000)

    def meet() -> None:
        with loop.waiting(COLLECTIVE):
            clock.go_on(4)
            raise TimeoutError("no rank")

    with pytest.raises(TimeoutError, match="no rank"):
        meet()
    assert waited(loop) == [9, 0, 4]


def test_other_threads_do_not_count_even_for_an_iterator_of_the_loop(
    loop: LoopTime, clock: Clock
) -> None:
    of_loop = timed(Batches(clock, 10, 60))
    next(of_loop)
    found = []

    def read_ahead() -> None:
        batches = Batches(clock, 80)
        # TensorFlow begins and reads in threads of its own.
        found.append(timed(batches) is batches)
        next(of_loop)
        with loop.waiting(COLLECTIVE):
            clock.go_on(5)

    thread = threading.Thread(target=read_ahead)
    thread.start()
    thread.join()
    assert found == [True]
    assert waited(loop) == [10, 0, 0]


def test_another_thread_alone_does_not_make_data_seen(loop: LoopTime, clock: Clock) -> None:
    thread = threading.Thread(target=lambda: list(timed(Batches(clock, 80))))
    thread.start()
    thread.join()
    assert waited(loop) == [None, 0, 0]


def test_without_a_training_function_iterators_stay_what_they_are(clock: Clock) -> None:
    batches = Batches(clock, 1)
    assert timed(batches) is batches
    with waiting(CHECKPOINT):
        clock.go_on(1)
    idle = LoopTime()
    with idle.waiting(DATA):
        clock.go_on(1)
    assert idle.encode() == b""


def test_no_batch_is_kept(loop: LoopTime) -> None:
    class Batch:
        pass

    batches = timed(iter(Batch, None))
    batch = next(batches)
    seen = weakref.ref(batch)
    del batch
    assert seen() is None
