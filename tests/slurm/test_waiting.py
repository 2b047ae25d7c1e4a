from __future__ import annotations

import re

import pytest

from hpctrain.slurm.output import Job
from hpctrain.slurm.waiting import REASONS, PendingReason, explain_wait, look_up


def explain(reason: str, state: str = "PENDING") -> str:
    return explain_wait(Job(job_id="7", state=state, reason=reason), run="/runs/a")


@pytest.mark.parametrize(
    ("reason", "meaning"),
    [
        ("Priority", "jobs with a higher priority are before it"),
        ("Resources", "waits until enough nodes are free"),
        ("Dependency", "a job that it depends on has not ended"),
        ("BeginTime", "does not begin before a given time"),
        ("AssocMaxJobsLimit", "as much running as may run at a time"),
        ("QOSMaxJobsPerUserLimit", "as much running as may run at a time"),
        ("QOSMaxCpuPerUserLimit", "as much running as may run at a time"),
        ("QOSGrpNodeLimit", "as much running as may run at a time"),
        ("AssocGrpCpuLimit", "as much running as may run at a time"),
        ("AssocGrpGRES", "as much running as may run at a time"),
        ("AssociationJobLimit", "as much running as may run at a time"),
        ("Licenses", "licenses that it needs are in use"),
        ("Reservation", "its reservation has not begun"),
        ("SomethingNew", "'man squeue' explains it"),
    ],
)
def test_a_wait_that_ends_by_itself_is_explained_and_asks_for_nothing(reason: str, meaning: str):
    told = explain(reason)
    assert re.match(rf"waits \({reason}\): .*{meaning}", told)
    assert told.count(".") == 1


@pytest.mark.parametrize(
    ("reason", "step"),
    [
        ("DependencyNeverSatisfied", "Cancel it (hpctrain cancel /runs/a) and submit it without"),
        ("AssocMaxCpuPerJobLimit", "Cancel it (hpctrain cancel /runs/a) and ask for less"),
        ("AssocMaxWallDurationPerJobLimit", "Cancel it (hpctrain cancel /runs/a) and ask for"),
        ("QOSMaxNodePerJobLimit", "Cancel it (hpctrain cancel /runs/a) and ask for less"),
        ("QOSMinCpuNotSatisfied", "Cancel it (hpctrain cancel /runs/a) and ask for less"),
        ("PartitionTimeLimit", "Cancel it (hpctrain cancel /runs/a) and ask for less"),
        ("BadConstraints", "Cancel it (hpctrain cancel /runs/a) and ask for less"),
        ("InvalidQOS", "Cancel it (hpctrain cancel /runs/a) and submit it with another"),
        ("ReservationDeleted", "Cancel it (hpctrain cancel /runs/a) and submit it with another"),
        ("AssocGrpCPUMinutesLimit", "'sacctmgr show associations user=$USER' lists other"),
        ("AssocGrpBillingMinutes", "'sacctmgr show associations user=$USER' lists other"),
        ("ReqNodeNotAvail,_UnavailableNodes:node2", "'sinfo -R' and 'scontrol show reservation'"),
        (
            "Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority",
            "'sinfo -R' and 'scontrol show reservation'",
        ),
        ("PartitionDown", "'sinfo' lists other partitions"),
        ("JobHeldUser", "Release it: scontrol release 7."),
        ("JobHeldAdmin", "Ask the site why."),
        ("JobHoldMaxRequeue", "then release it: scontrol release 7."),
        ("launch_failed_requeued_held", "then release it: scontrol release 7."),
    ],
)
def test_a_wait_that_need_not_end_says_what_to_do(reason: str, step: str):
    assert step in explain(reason)


def test_a_job_that_does_not_wait_has_nothing_to_explain():
    assert explain("None", "RUNNING") == ""
    assert explain("NonZeroExitCode", "FAILED") == ""
    assert explain("None") == ""
    assert explain("None", "SUSPENDED").startswith("is suspended by Slurm")


@pytest.mark.parametrize("row", REASONS, ids=lambda row: row.examples[0])
def test_each_reason_that_the_documentation_names_is_explained_by_its_own_row(row: PendingReason):
    assert {look_up(name) for name in row.examples} == {row}
