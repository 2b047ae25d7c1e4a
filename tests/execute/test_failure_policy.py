from __future__ import annotations

import pytest

from hpctrain.config import FailureConfig
from hpctrain.execute.failure_policy import FailurePolicy


@pytest.mark.parametrize(("budget", "expected"), [(0, [False]), (2, [True, True, False])])
def test_failures_are_counted_against_the_budget(budget: int, expected: list[bool]):
    policy = FailurePolicy(FailureConfig(max_failures=budget))
    decisions = [policy.after_worker_failure() for _ in expected]
    assert [decision.restart for decision in decisions] == expected
    assert decisions[-1].reason == f"failure {budget + 1} of max_failures={budget}"


def test_a_budget_without_end_never_runs_out():
    policy = FailurePolicy(FailureConfig(max_failures=-1))
    decisions = [policy.after_worker_failure() for _ in range(100)]
    assert all(decision.restart for decision in decisions)
    assert decisions[-1].reason == "failure 100, without a limit"


def test_a_start_that_may_work_the_next_time_is_tried_again_a_few_times_and_costs_no_budget():
    policy = FailurePolicy(FailureConfig(max_failures=1))
    starts = [policy.after_start_failure(transient=True).restart for _ in range(10)]
    assert starts[0]
    assert not starts[-1]
    assert policy.after_worker_failure().restart


def test_a_start_that_never_works_is_not_tried_again():
    policy = FailurePolicy(FailureConfig(max_failures=-1))
    assert not policy.after_start_failure(transient=False).restart
