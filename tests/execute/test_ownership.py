from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from hpctrain.execute.failure_policy import (
    NextJob,
    StopKind,
    StopNotice,
    choose_next_job,
    interpret_signal,
)
from hpctrain.execute.ownership import Ownership, judge_ownership
from hpctrain.execute.stop import patience_s
from hpctrain.slurm.output import Job, parse_job
from hpctrain.timeouts import STOP_AGREEMENT_S

# Slurm 22.05, shortened: a job of low priority in its grace time.
IN_GRACE = (
    "JobId=5 JobName=run UserId=root(0) Priority=4294901756 Nice=0 JobState=RUNNING Reason=None "
    "Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0 RunTime=00:00:03 TimeLimit=01:00:00 "
    "StartTime=2026-11-21T13:53:00 EndTime=2026-11-21T13:53:08 "
    "PreemptEligibleTime=2026-11-21T13:53:00 PreemptTime=2026-11-21T13:53:03 NodeList=node1"
)
NOW = 1_000_000.0
RUNNING = Job(
    job_id="5",
    state="RUNNING",
    may_requeue=True,
    is_batch=True,
    end_time=NOW + 3600,
)


def test_what_slurm_says_of_a_job_in_its_grace_time_is_read() -> None:
    job = parse_job(IN_GRACE)
    end = time.mktime(time.strptime("2026-11-21T13:53:08", "%Y-%m-%dT%H:%M:%S"))
    grace = replace(RUNNING, is_preempted=True, end_time=end)
    assert job is not None
    begin = {"start_time": job.start_time, "time_limit": job.time_limit}
    assert job == replace(grace, reason="None", exit_code="0:0", nodes="node1", **begin)


def test_a_job_that_is_being_queued_again_has_no_end_and_one_restart_more() -> None:
    said = IN_GRACE.replace("RUNNING", "COMPLETING").replace("Restarts=0", "Restarts=1")
    job = parse_job(said.replace("EndTime=2026-11-21T13:53:08", "EndTime=Unknown"))
    assert job is not None
    assert (job.is_running, job.restarts, job.end_time) == (False, 1, None)


@pytest.mark.parametrize(
    ("terms", "kind", "deadline"),
    [
        (replace(RUNNING, is_preempted=True, end_time=NOW + 5), StopKind.PREEMPTION, NOW + 5),
        # Slurm may be a minute early.
        (replace(RUNNING, end_time=NOW + 180), StopKind.TIME_LIMIT, NOW + 180),
        (RUNNING, StopKind.PREEMPTION, None),
        (replace(RUNNING, end_time=None), StopKind.PREEMPTION, None),
        (replace(RUNNING, state="COMPLETING", end_time=NOW), StopKind.PREEMPTION, None),
        (None, StopKind.PREEMPTION, None),
    ],
    ids=["preempted", "end-is-near", "by-hand", "no-limit", "ending", "no-answer"],
)
def test_a_signal_means_what_slurm_says_of_the_job(
    terms: Job | None, kind: StopKind, deadline: float | None
) -> None:
    notice = interpret_signal("SIGUSR2", terms, now=NOW, notice_s=120)
    assert (notice.kind, notice.deadline) == (kind, deadline)


PREEMPTED = StopNotice(kind=StopKind.PREEMPTION, why="test")
TIME_LIMIT = StopNotice(kind=StopKind.TIME_LIMIT, why="test", deadline=NOW + 60)


@pytest.mark.parametrize(
    ("changes", "notice", "others", "expected"),
    [
        ({}, TIME_LIMIT, {}, NextJob.REQUEUE),
        ({}, PREEMPTED, {}, NextJob.REQUEUE),
        ({"may_requeue": False}, TIME_LIMIT, {}, NextJob.SUCCESSOR),
        ({}, TIME_LIMIT, {"requeue": False}, NextJob.SUCCESSOR),
        ({"is_batch": False}, TIME_LIMIT, {"is_ours": False}, NextJob.STOP),
        # A person's own job: only where Slurm would queue it again itself.
        ({}, TIME_LIMIT, {"is_ours": False}, NextJob.STOP),
        ({"is_preempted": True}, PREEMPTED, {"is_ours": False}, NextJob.REQUEUE),
        ({"state": "COMPLETING", "restarts": 1}, PREEMPTED, {}, NextJob.LEAVE),
        ({"state": "COMPLETING"}, PREEMPTED, {}, NextJob.STOP),
        # A person has cancelled it after the warning.
        ({"state": "COMPLETING"}, TIME_LIMIT, {}, NextJob.STOP),
        ({"state": "CANCELLED by 1000"}, TIME_LIMIT, {"now": NOW + 60}, NextJob.STOP),
        ({"state": "COMPLETING"}, TIME_LIMIT, {"now": NOW + 51}, NextJob.SUCCESSOR),
        ({"state": "COMPLETING", "reason": "TimeLimit"}, TIME_LIMIT, {}, NextJob.SUCCESSOR),
        # Slurm ends a job of which a node fails.
        ({"state": "COMPLETING", "reason": "NodeDown"}, TIME_LIMIT, {}, NextJob.SUCCESSOR),
        ({"state": "COMPLETING", "is_preempted": True}, TIME_LIMIT, {}, NextJob.SUCCESSOR),
        ({"state": "COMPLETING", "is_preempted": True}, PREEMPTED, {}, NextJob.SUCCESSOR),
        ({"restarts": 1}, TIME_LIMIT, {"restarts": 1}, NextJob.REQUEUE),
    ],
)
def test_how_a_run_goes_on(
    changes: dict[str, Any], notice: StopNotice, others: dict[str, Any], expected: NextJob
) -> None:
    arguments = {"now": NOW, "restarts": 0, "is_ours": True, "requeue": True} | others
    assert choose_next_job(replace(RUNNING, **changes), notice, **arguments) is expected


def test_outside_of_jobs_a_person_decides() -> None:
    how = choose_next_job(None, PREEMPTED, now=NOW, restarts=0, is_ours=True, requeue=True)
    assert how is NextJob.STOP


def event(name: str, **details: Any) -> dict[str, Any]:
    return {"event": name, **details}


FIT, ENDED = event("fit"), event("run-ended")
FIRST = event("submitted", job_id="1")
AGAIN = event("submitted", job_id="2")
HANDING, SECOND = event("handing-over", job_id="1"), event("successor", job_id="2")


@pytest.mark.parametrize(
    ("events", "of_first", "of_second"),
    [
        ([FIT], Ownership.UNDECIDED, Ownership.UNDECIDED),
        ([FIT, FIRST], Ownership.MINE, Ownership.OTHERS),
        ([FIT, FIRST, HANDING], Ownership.MINE, Ownership.UNDECIDED),
        ([FIT, FIRST, HANDING, SECOND], Ownership.OTHERS, Ownership.MINE),
        ([FIT, FIRST, ENDED], Ownership.OVER, Ownership.OVER),
        (
            [FIT, FIRST, ENDED, FIT, event("submitted", job_id="2")],
            Ownership.OTHERS,
            Ownership.MINE,
        ),
    ],
    ids=["begun", "submitted", "handing-over", "handed-over", "over", "again"],
)
def test_the_ledger_says_which_job_owns_a_run(
    events: list[Any], of_first: Ownership, of_second: Ownership
) -> None:
    assert judge_ownership(events, "1") is of_first
    assert judge_ownership(events, "2") is of_second


def test_ranks_have_as_long_as_the_job_leaves_them() -> None:
    def patience(deadline: float | None) -> float:
        return patience_s(replace(TIME_LIMIT, deadline=deadline), now=NOW)

    assert patience(None) == STOP_AGREEMENT_S
    assert patience(NOW + 120) == 100
    # Of a short grace time half is theirs.
    assert patience(NOW + 6) == 3
    assert patience(NOW - 6) == 0
    # Whoever is asked to go by a person does not wait for it.
    asked = replace(TIME_LIMIT, kind=StopKind.REQUEST, deadline=NOW + 1800)
    assert patience_s(asked, now=NOW) == STOP_AGREEMENT_S
    assert patience_s(replace(asked, deadline=NOW + 60), now=NOW) == 40
