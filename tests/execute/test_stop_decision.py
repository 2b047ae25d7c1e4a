"""Every cell of the stop decision: which reason stands after which, for how long, and why."""

from __future__ import annotations

import itertools

import pytest

from hpctrain.execute.stop_decision import StopDecision, StopKind, StopNotice
from hpctrain.rundir.history import FailureKind

WEIGHTS = {
    StopKind.RESIZE: 0,
    StopKind.GOAL: 1,
    StopKind.TOTAL_TIME: 2,
    StopKind.TIME_LIMIT: 2,
    StopKind.PREEMPTION: 2,
    StopKind.REQUEST: 3,
}
PAIRS = list(itertools.product(StopKind, StopKind))


def notice(kind: StopKind, deadline: float | None = None) -> StopNotice:
    return StopNotice(kind=kind, why=f"of {kind.value}", deadline=deadline)


def decide(*kinds: StopKind) -> StopDecision:
    decision = StopDecision()
    for kind in kinds:
        decision = decision.after_request(notice(kind))
    return decision


def test_every_kind_has_a_weight():
    assert {kind: kind.weight for kind in StopKind} == WEIGHTS


@pytest.mark.parametrize("kind", StopKind)
def test_only_the_end_of_a_job_counts_as_a_failure(kind: StopKind):
    counted = {
        StopKind.TIME_LIMIT: FailureKind.TIME_LIMIT,
        StopKind.PREEMPTION: FailureKind.PREEMPTION,
    }
    assert kind.failure is counted.get(kind)


@pytest.mark.parametrize("kind", StopKind)
def test_any_reason_stops_a_run_that_was_not_to_stop(kind: StopKind):
    assert StopDecision().reason is None
    assert StopDecision().yields_to(kind)
    assert decide(kind).notice == notice(kind)
    assert decide(kind).reason == f"of {kind.value}"


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_of_two_reasons_the_weightier_stands_and_of_equal_ones_the_first(
    first: StopKind, second: StopKind
):
    is_replaced = WEIGHTS[second] > WEIGHTS[first]
    assert decide(first).yields_to(second) is is_replaced
    assert decide(first, second).notice == notice(second if is_replaced else first)


@pytest.mark.parametrize(
    ("earlier", "later", "kept"),
    [(60.0, None, 60.0), (60.0, 90.0, 60.0), (60.0, 30.0, 30.0), (None, 30.0, 30.0)],
)
def test_a_reason_that_takes_the_place_of_another_does_not_put_off_the_end_of_the_job(
    earlier: float | None, later: float | None, kept: float
):
    decision = StopDecision().after_request(notice(StopKind.TIME_LIMIT, earlier))
    decision = decision.after_request(notice(StopKind.REQUEST, later))
    assert decision.notice == notice(StopKind.REQUEST, kept)


def test_an_equal_reason_with_an_earlier_end_of_the_job_brings_that_forward():
    limit = StopDecision().after_request(notice(StopKind.TIME_LIMIT, 2000.0))
    later = limit.after_request(notice(StopKind.PREEMPTION, 3000.0))
    assert later is limit
    sooner = limit.after_request(notice(StopKind.PREEMPTION, 1030.0))
    assert sooner.notice == notice(StopKind.TIME_LIMIT, 1030.0)


def test_what_more_is_known_of_a_reason_replaces_it_unless_another_one_stands():
    before = StopNotice(kind=StopKind.PREEMPTION, why="it got SIGUSR2")
    after = StopNotice(kind=StopKind.TIME_LIMIT, why="the time limit ends", deadline=2000.0)
    decision = StopDecision().after_request(before)
    assert decision.after_answer(before, after).notice == after
    assert StopDecision().after_answer(before, after).notice is None
    asked = decision.after_request(notice(StopKind.REQUEST, None))
    assert asked.after_answer(before, after).notice == notice(StopKind.REQUEST, 2000.0)


@pytest.mark.parametrize(("stands", "withdrawn"), PAIRS)
def test_only_the_reason_that_stands_can_be_withdrawn(stands: StopKind, withdrawn: StopKind):
    decision = decide(stands).after_withdrawal(withdrawn)
    assert decision.notice == (None if stands is withdrawn else notice(stands))


@pytest.mark.parametrize("kind", StopKind)
def test_to_withdraw_a_reason_of_a_run_that_is_not_to_stop_changes_nothing(kind: StopKind):
    assert StopDecision().after_withdrawal(kind) == StopDecision()


def test_the_first_report_that_meets_the_criterion_counts():
    decision = StopDecision().after_criterion(3, "accuracy=0.9 reached 0.9")
    assert decision.after_criterion(4, "accuracy=0.95 reached 0.9") == decision
    assert decision.criterion is not None
    assert (decision.criterion.report, decision.reason) == (3, "accuracy=0.9 reached 0.9")


@pytest.mark.parametrize("kind", StopKind)
def test_a_criterion_is_met_whatever_else_stops_the_run(kind: StopKind):
    decision = decide(kind).after_criterion(3, "met")
    assert decision.criterion is not None
    assert decision.reason == ("met" if kind is StopKind.RESIZE else f"of {kind.value}")


@pytest.mark.parametrize(
    ("saved", "stands"), [(2, False), (3, True), (4, True)], ids=["before", "at", "after"]
)
@pytest.mark.parametrize("kind", [None, *StopKind])
def test_a_restart_keeps_a_criterion_that_a_saved_report_has_met(
    saved: int, stands: bool, kind: StopKind | None
):
    decision = StopDecision().after_criterion(3, "met").after_withdrawal(StopKind.GOAL)
    if kind is not None:
        decision = decision.after_request(notice(kind))
    restarted = decision.after_restart(saved)
    assert (restarted.criterion is not None) is stands
    if stands and kind in (None, StopKind.RESIZE):
        assert restarted.reason == "met"
    else:
        assert restarted.notice == decision.notice


@pytest.mark.parametrize("kind", StopKind)
def test_a_restart_keeps_a_reason_without_a_criterion(kind: StopKind):
    assert decide(kind).after_restart(7) == decide(kind)


@pytest.mark.parametrize("kind", StopKind)
def test_every_reason_but_the_goal_ends_a_run_early(kind: StopKind):
    assert not StopDecision().ends_early
    assert decide(kind).ends_early is (kind is not StopKind.GOAL)


@pytest.mark.parametrize("notified", [False, True])
@pytest.mark.parametrize("is_met", [False, True])
@pytest.mark.parametrize("kind", [None, *StopKind])
def test_ranks_leave_a_run_unfinished_that_return_because_they_were_notified(
    kind: StopKind | None, is_met: bool, notified: bool
):
    decision = StopDecision() if kind is None else decide(kind)
    if is_met:
        decision = decision.after_criterion(1, "met")
    expected = kind is not None and notified and not is_met
    assert decision.leaves_unfinished(notified=notified) is expected
