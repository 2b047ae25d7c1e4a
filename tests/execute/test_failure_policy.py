from __future__ import annotations

import pytest

from hpctrain.config import FailureConfig
from hpctrain.errors import ConfigError, LaunchError, RunStoppedError, WorkerError
from hpctrain.execute.failure_policy import (
    MAX_ATTEMPTS_WITHOUT_PROGRESS,
    Decision,
    classify_attempt_end,
    classify_failure,
    decide,
    describe_cause,
)
from hpctrain.execute.stop_decision import StopKind, StopNotice
from hpctrain.rundir.history import FailureKind, History

BUDGET_OF = {
    FailureKind.WORKER: "max_failures",
    FailureKind.START: "controller_failure_limit",
    FailureKind.PREEMPTION: "max_preemption_failures",
}


@pytest.mark.parametrize("kind", BUDGET_OF)
@pytest.mark.parametrize(("budget", "expected"), [(0, [False]), (2, [True, True, False])])
def test_each_kind_of_failure_has_a_budget_of_its_own(
    kind: FailureKind, budget: int, expected: list[bool]
):
    config = FailureConfig(**dict.fromkeys(BUDGET_OF.values(), 0) | {BUDGET_OF[kind]: budget})
    decisions = [
        decide(kind, History(failures={kind: count}), config)
        for count in range(1, len(expected) + 1)
    ]
    assert [decision.restart for decision in decisions] == expected
    assert (
        decisions[-1].reason == f"{kind.value} failure {budget + 1} of {BUDGET_OF[kind]}={budget}"
    )


def test_failures_of_another_kind_cost_nothing():
    history = History(failures={FailureKind.PREEMPTION: 99, FailureKind.WORKER: 1})
    assert decide(FailureKind.WORKER, history, FailureConfig(max_failures=1)).restart


def test_a_budget_without_end_never_runs_out_as_long_as_there_is_progress():
    history = History(
        failures={FailureKind.WORKER: 1000}, without_progress=MAX_ATTEMPTS_WITHOUT_PROGRESS - 1
    )
    decision = decide(FailureKind.WORKER, history, FailureConfig(max_failures=-1))
    assert decision.restart
    assert decision.reason == "worker failure 1000, without a limit"


@pytest.mark.parametrize("kind", FailureKind)
def test_a_run_without_progress_is_stopped_whatever_the_budget(kind: FailureKind):
    config = FailureConfig(max_failures=-1, controller_failure_limit=-1, max_preemption_failures=-1)
    history = History(failures={kind: 5}, without_progress=MAX_ATTEMPTS_WITHOUT_PROGRESS)
    decision = decide(kind, history, config)
    assert not decision.restart
    assert decision.reason.startswith("5 attempts in a row ended without a newer checkpoint")


def test_starts_that_fail_in_a_row_are_tried_later_and_later():
    delays = [
        decide(
            FailureKind.START, History(without_progress=without_progress), FailureConfig()
        ).delay_s
        for without_progress in range(1, MAX_ATTEMPTS_WITHOUT_PROGRESS)
    ]
    assert delays == [0.5, 1.0, 2.0, 4.0]
    assert decide(
        FailureKind.WORKER, History(without_progress=3), FailureConfig(max_failures=9)
    ) == (Decision(restart=True, reason="worker failure 0 of max_failures=9", number=0, budget=9))


def test_the_end_of_the_time_limit_costs_no_budget():
    config = FailureConfig(max_preemption_failures=0, controller_failure_limit=0)
    assert decide(FailureKind.TIME_LIMIT, History(), config).restart


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (WorkerError("rank 1 failed"), FailureKind.WORKER),
        (LaunchError("no world"), FailureKind.START),
        (RunStoppedError("asked to"), None),
        (ConfigError("no"), None),
        (KeyboardInterrupt(), None),
        (None, None),
    ],
)
def test_what_ended_an_attempt_says_which_budget_pays(
    error: BaseException | None, kind: FailureKind | None
):
    assert classify_failure(error) is kind


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (LaunchError("no srun\nmore"), "the ranks could not be started: no srun"),
        (WorkerError("rank 1 failed\n  Log: x"), "rank 1 failed"),
        (ValueError("\x1b[2Ja\tb"), " [2Ja b"),
        (ValueError(), "ValueError"),
    ],
)
def test_the_cause_of_an_end_is_one_line(error: Exception, cause: str) -> None:
    assert describe_cause(error) == cause


def test_the_cause_has_the_first_of_what_a_launcher_has_printed() -> None:
    error = LaunchError("mpiexec ended. mpiexec printed:\n-----\nmpiexec: unknown option -i\nUsage")
    said = "mpiexec ended. mpiexec printed: mpiexec: unknown option -i"
    assert describe_cause(error) == f"the ranks could not be started: {said}"


def test_the_cause_of_an_end_is_short_whatever_a_user_raised() -> None:
    error = WorkerError("long")
    error.brief = "x" * 10_000
    assert len(describe_cause(error)) == 300


@pytest.mark.parametrize(
    ("error", "stopped_by", "expected"),
    [
        (WorkerError("no"), None, FailureKind.WORKER),
        (WorkerError("no"), StopKind.PREEMPTION, FailureKind.PREEMPTION),
        (LaunchError("no"), StopKind.TIME_LIMIT, FailureKind.TIME_LIMIT),
        (WorkerError("no"), StopKind.REQUEST, FailureKind.WORKER),
        (RunStoppedError("no"), StopKind.PREEMPTION, FailureKind.PREEMPTION),
        (RunStoppedError("no"), StopKind.REQUEST, None),
        (ConfigError("no"), StopKind.PREEMPTION, None),
        (None, StopKind.PREEMPTION, None),
    ],
)
def test_errors_of_ranks_whose_job_ends_count_as_that_end(
    error: BaseException | None, stopped_by: StopKind | None, expected: FailureKind | None
):
    stop = None if stopped_by is None else StopNotice(kind=stopped_by, why="so")
    assert classify_attempt_end(error, stop) is expected
