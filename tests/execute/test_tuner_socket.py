"""The sockets by which a tuner and an executor wake each other."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from hpctrain.execute.tuner_socket import ExecutorEnd, TunerEnd, await_news, make_pair

# A test that waits for this timeout does not end in time.
LONG_S = 3600.0


@pytest.fixture
def ends() -> Iterator[tuple[TunerEnd, ExecutorEnd]]:
    ours, its = make_pair()
    tuner, executor = TunerEnd(), ExecutorEnd(its.detach())
    tuner.keep(ours)
    with closing(tuner), closing(executor):
        yield tuner, executor


def test_news_of_a_stop_is_seen_once_however_often_it_was_sent(
    ends: tuple[TunerEnd, ExecutorEnd],
) -> None:
    tuner, executor = ends
    assert not executor.was_notified()
    tuner.notify_of_stop()
    tuner.notify_of_stop()
    assert [executor.was_notified(), executor.was_notified()] == [True, False]
    tuner.notify_of_stop()
    assert executor.was_notified()


def test_the_last_decision_counts_and_only_for_its_attempt(
    ends: tuple[TunerEnd, ExecutorEnd],
) -> None:
    tuner, executor = ends
    assert not executor.decides
    tuner.promise_decisions()
    for moment in ((1, 7), (2, 3), (2, 4), (1, 9)):
        tuner.decide(moment)
    executor.receive()
    assert executor.decides
    assert [executor.decided_on(attempt) for attempt in (1, 2, 3)] == [0, 4, 0]


def test_what_an_executor_sends_ends_the_wait_of_its_tuner(
    ends: tuple[TunerEnd, ExecutorEnd],
) -> None:
    tuner, executor = ends
    other = TunerEnd()
    assert await_news([tuner, other], 0.0) == []
    assert executor.send_reported((1, 1))
    assert executor.send_reported((1, 2))
    assert await_news([tuner, other], LONG_S) == [tuner]
    tuner.receive()
    assert tuner.reported == (1, 2)
    assert await_news([tuner, other], 0.0) == []


def test_a_tuner_that_is_gone_decides_nothing(ends: tuple[TunerEnd, ExecutorEnd]) -> None:
    tuner, executor = ends
    tuner.promise_decisions()
    tuner.notify_of_stop()
    tuner.close()
    assert [executor.was_notified() for _ in range(3)] == [True, False, False]
    assert not executor.decides
    assert not executor.send_reported((1, 1))
    tuner.notify_of_stop()
    assert not ExecutorEnd().was_notified()


def test_an_executor_that_is_gone_is_sent_nothing_and_no_error_is_raised(
    ends: tuple[TunerEnd, ExecutorEnd],
) -> None:
    tuner, executor = ends
    tuner.decide((1, 1))
    executor.close()
    executor.close()
    assert await_news([tuner], LONG_S) == [tuner]
    tuner.notify_of_stop()
    tuner.decide((1, 2))
    assert not tuner.is_open
    assert await_news([tuner], 0.0) == []


def test_the_end_of_an_executor_is_seen_after_all_that_it_has_sent(
    ends: tuple[TunerEnd, ExecutorEnd],
) -> None:
    tuner, executor = ends
    executor.send_reported((1, 5))
    executor.close()
    assert await_news([tuner], LONG_S) == [tuner]
    tuner.receive()
    assert (tuner.reported, tuner.is_open) == ((1, 5), False)


def test_one_that_reads_nothing_is_not_waited_for(ends: tuple[TunerEnd, ExecutorEnd]) -> None:
    tuner, executor = ends
    sent = 0
    while executor.send_reported((1, sent + 1)):
        sent += 1
    tuner.receive()
    assert tuner.reported == (1, sent)
    assert executor.send_reported((1, sent + 1)), "there is room again"
    while_full = 10 * sent
    for report in range(while_full):
        tuner.decide((1, report))
    assert tuner.is_open


class Watcher:
    """Notes what is watched."""

    def __init__(self) -> None:
        self.callbacks: dict[int, object] = {}

    def watch(self, descriptor: int, callback: object) -> None:
        self.callbacks[descriptor] = callback

    def unwatch(self, descriptor: int) -> None:
        del self.callbacks[descriptor]


def test_a_socket_is_watched_until_its_end(ends: tuple[TunerEnd, ExecutorEnd]) -> None:
    tuner, executor = ends
    watcher = Watcher()
    with executor.watched_by(watcher):
        assert len(watcher.callbacks) == 1
    assert not watcher.callbacks
    with executor.watched_by(watcher):
        tuner.close()
        executor.receive()
        # It could be read for ever.
        assert not watcher.callbacks
    with executor.watched_by(watcher):
        assert not watcher.callbacks


def test_each_message_is_read_by_itself() -> None:
    ours, its = make_pair()
    with ours, its:
        ours.send(b"\n")
        ours.send(b"decides")
        # As the executor begins.
        assert its.recv(1, socket.MSG_DONTWAIT) == b"\n"
        assert its.recv(99, socket.MSG_DONTWAIT) == b"decides"
