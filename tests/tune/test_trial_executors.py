"""The sockets of a tuner to the executors of its trials."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from hpctrain.execute.tuner_socket import ExecutorEnd, make_pair
from hpctrain.tune.trial_executors import TrialExecutors

LONG_S = 60.0
Begin = Callable[[str], ExecutorEnd]


@pytest.fixture
def executors() -> Iterator[TrialExecutors]:
    made = TrialExecutors()
    yield made
    made.close()


@pytest.fixture
def begin(executors: TrialExecutors) -> Iterator[Begin]:
    """Begin the executor of a trial, and return its end."""
    begun: list[ExecutorEnd] = []

    def begin(trial_id: str) -> ExecutorEnd:
        ours, its = make_pair()
        executors.begin(trial_id).keep(ours)
        begun.append(ExecutorEnd(its.detach()))
        return begun[-1]

    yield begin
    for executor in begun:
        executor.close()


def test_news_are_of_the_trial_that_has_reported_and_are_taken_once(
    executors: TrialExecutors, begin: Begin
) -> None:
    begin("a")
    second = begin("b")
    assert second.send_reported((1, 7))
    executors.wait(LONG_S)
    assert [executors.take_news(name) for name in "aabb"] == [False, False, True, False]
    assert (executors.reported_by("a"), executors.reported_by("b")) == ((0, 0), (1, 7))


def test_the_end_of_an_executor_is_news_and_all_that_it_has_reported_is_due(
    executors: TrialExecutors, begin: Begin
) -> None:
    executor = begin("a")
    assert executor.send_reported((1, 2))
    executor.close()
    executors.wait(LONG_S)
    assert executors.take_news("a")
    assert executors.reported_by("a") is None
    executors.wait(0.0)
    assert not executors.take_news("a")


def test_a_trial_is_sent_its_own_decisions_and_stop(
    executors: TrialExecutors, begin: Begin
) -> None:
    first, second = begin("a"), begin("b")
    executors.decide("a", (1, 3))
    executors.notify_of_stop("b")
    assert [first.was_notified(), second.was_notified()] == [False, True]
    assert [first.decided_on(1), second.decided_on(1)] == [3, 0]


def test_a_trial_that_begins_again_has_one_socket(executors: TrialExecutors, begin: Begin) -> None:
    first = begin("a")
    second = begin("a")
    assert not first.send_reported((1, 9)), "nobody is there any more"
    assert second.send_reported((2, 1))
    executors.wait(LONG_S)
    assert executors.reported_by("a") == (2, 1)


def test_one_that_this_tuner_has_not_begun_is_sent_nothing(executors: TrialExecutors) -> None:
    executors.decide("a", (1, 1))
    executors.notify_of_stop("a")
    executors.let_go("a")
    executors.wait(0.0)
    assert executors.reported_by("a") is None
