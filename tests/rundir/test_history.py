from __future__ import annotations

from typing import Any

from hpctrain.rundir.history import (
    FailureKind,
    read_history,
    read_met_criterion,
    unfinished_attempts,
)


def fit(**details: Any) -> dict[str, Any]:
    return {"event": "fit", **details}


def attempt(number: int, kind: str | None, *, begins: int = 0, saved: int = 0) -> list[Any]:
    return [
        {"event": "attempt-started", "attempt": number, "first_report": begins},
        {"event": "attempt-ended", "attempt": number, "kind": kind, "saved": saved},
    ]


def test_failures_are_counted_by_kind_over_all_jobs():
    events = [
        fit(),
        *attempt(1, "worker"),
        {"event": "submitted", "job_id": "2"},
        *attempt(2, "preemption"),
        *attempt(3, "worker"),
        *attempt(4, None),
    ]
    history = read_history(events)
    assert history.failures == {FailureKind.WORKER: 2, FailureKind.PREEMPTION: 1}


def test_a_person_who_calls_fit_begins_anew_and_a_job_that_slurm_starts_again_does_not():
    events = [fit(), *attempt(1, "worker"), fit(continues=True), *attempt(2, "worker")]
    assert read_history(events).failures == {FailureKind.WORKER: 2}
    assert read_history([*events, fit(continues=False)]).failures == {}


def test_an_attempt_of_before_that_is_only_closed_now_is_not_counted():
    started, ended = attempt(1, "preemption")
    assert read_history([fit(), started, fit(), ended]).failures == {}


def test_a_newer_checkpoint_is_progress_and_a_further_report_is_not():
    events = [
        fit(),
        *attempt(1, "worker", begins=0, saved=0),
        *attempt(2, "preemption", begins=0, saved=7),
        *attempt(3, "worker", begins=7, saved=7),
        *attempt(4, "start", begins=7, saved=7),
    ]
    assert read_history(events[:3]).without_progress == 1
    assert read_history(events[:5]).without_progress == 0
    assert read_history(events).without_progress == 2


def test_an_attempt_that_did_not_fail_and_left_a_newer_checkpoint_is_progress():
    events = [fit(), *attempt(1, "preemption"), *attempt(2, None, saved=100)]
    assert read_history(events).without_progress == 0
    events += attempt(3, "preemption", begins=100, saved=100)
    assert read_history(events).without_progress == 1
    assert read_history([*events, *attempt(4, None, begins=100, saved=100)]).without_progress == 1


def test_nodes_that_cannot_be_chosen_count_once_beside_the_attempt_that_lost_them():
    short = {"event": "not-placed", "kind": "preemption"}
    begun = {"event": "executor-started", "time": 0.0}
    events = [fit(), begun, *attempt(1, "preemption"), short]
    assert read_history(events).failures == {FailureKind.PREEMPTION: 1}
    # In the next job they are too few from its beginning.
    events += [begun, short]
    assert read_history(events).without_progress == 2
    silent = {"event": "not-placed", "kind": "start"}
    history = read_history([*events, silent, silent])
    assert history.failures == {FailureKind.PREEMPTION: 2, FailureKind.START: 2}
    assert history.without_progress == 4


def test_an_end_that_was_written_twice_is_one_failure():
    started, ended = attempt(1, "worker")
    history = read_history([fit(), started, ended, ended])
    assert history.failures == {FailureKind.WORKER: 1}
    assert history.without_progress == 1


def test_a_ledger_of_before_there_were_kinds_counts_nothing():
    events = [
        {"event": "attempt-started", "attempt": 1, "first_report": 0},
        {"event": "attempt-ended", "attempt": 1, "cause": "WorkerError: x"},
    ]
    assert read_history(events).failures == {}


def test_a_stop_criterion_is_met_until_its_report_is_made_again_or_a_person_calls_fit():
    met = {"event": "stop-criterion-met", "report": 5, "why": "loss=0.1 reached 0.1"}
    events = [fit(), *attempt(1, None), met, {**met, "report": 6}]
    assert read_met_criterion(events) == (5, "loss=0.1 reached 0.1")
    assert read_met_criterion([*events, *attempt(2, None, begins=5)]) is not None
    assert read_met_criterion([*events, *attempt(2, None, begins=4)]) is None
    assert read_met_criterion([*events, fit(continues=True)]) is not None
    assert read_met_criterion([*events, fit()]) is None


def test_attempts_that_nobody_could_close_are_found():
    first, _ = attempt(1, None)
    assert unfinished_attempts([first, *attempt(2, None)]) == [first]
