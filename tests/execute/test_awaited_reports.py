"""Ranks of a trial begin their next report when the tuner has decided on the last one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from hpctrain.execute.awaited_reports import AwaitedReports
from hpctrain.execute.tuner_socket import ExecutorEnd, TunerEnd, make_pair

ATTEMPT = 3


class Executor:
    """One with a tuner, and what it has sent to ranks."""

    def __init__(self) -> None:
        ours, its = make_pair()
        self.of_tuner, self.tuner = TunerEnd(), ExecutorEnd(its.detach())
        self.of_tuner.keep(ours)
        self.awaited_reports = AwaitedReports()
        self.awaited_reports.begin_attempt(ATTEMPT)
        self.let_on: list[int] = []

    def broadcast(self, op: str, **details: Any) -> None:
        assert op == "go-on"
        self.let_on.append(details["report"])

    def step(self, awaited: int, *, is_stopping: bool = False) -> list[int]:
        self.tuner.receive()
        self.awaited_reports.step(
            self.tuner, self.broadcast, awaited=awaited, is_stopping=is_stopping
        )
        self.of_tuner.receive()
        return self.let_on

    def close(self) -> None:
        self.of_tuner.close()
        self.tuner.close()


@pytest.fixture
def executor() -> Iterator[Executor]:
    with closing(Executor()) as made:
        yield made


def test_ranks_go_on_after_the_report_that_was_decided_on(executor: Executor) -> None:
    executor.of_tuner.promise_decisions()
    assert executor.step(0) == []
    assert executor.of_tuner.reported == (0, 0)
    assert executor.step(1) == []
    assert executor.of_tuner.reported == (ATTEMPT, 1)
    executor.of_tuner.decide((ATTEMPT - 1, 9))
    assert executor.step(1) == []
    executor.of_tuner.decide((ATTEMPT, 1))
    assert executor.step(1) == [1]
    assert executor.step(1) == [1]
    assert executor.step(2) == [1]
    executor.of_tuner.decide((ATTEMPT, 2))
    assert executor.step(2) == [1, 2]


def test_a_decision_may_come_before_all_ranks_have_reported(executor: Executor) -> None:
    executor.of_tuner.promise_decisions()
    executor.of_tuner.decide((ATTEMPT, 4))
    assert executor.step(3) == [3]
    assert executor.step(4) == [3, 4]


def test_a_tuner_hears_of_reports_while_ranks_are_to_stop(executor: Executor) -> None:
    executor.of_tuner.promise_decisions()
    # Those that are to make room for more workers go on for long if they never ask.
    for report in (1, 2):
        executor.of_tuner.decide((ATTEMPT, report))
        assert executor.step(report, is_stopping=True) == []
        assert executor.of_tuner.reported == (ATTEMPT, report)
    assert executor.step(2) == [2]


def test_a_tuner_that_makes_no_decisions_is_not_waited_for(executor: Executor) -> None:
    assert executor.step(1) == [1]
    assert executor.of_tuner.reported == (0, 0)


def test_the_death_of_a_tuner_lets_ranks_go_on(executor: Executor) -> None:
    executor.of_tuner.promise_decisions()
    assert executor.step(1) == []
    executor.of_tuner.close()
    assert executor.step(1) == [1]
    assert executor.step(2) == [1, 2]


def test_the_ranks_of_another_attempt_wait_anew(executor: Executor) -> None:
    executor.of_tuner.promise_decisions()
    executor.of_tuner.decide((ATTEMPT, 5))
    assert executor.step(5) == [5]
    executor.awaited_reports.begin_attempt(ATTEMPT + 1)
    assert executor.step(3) == [5]
    assert executor.of_tuner.reported == (ATTEMPT + 1, 3)
    executor.of_tuner.decide((ATTEMPT + 1, 3))
    assert executor.step(3) == [5, 3]
