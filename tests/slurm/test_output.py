"""What Slurm's commands print, as recorded with Slurm 22.05."""

from __future__ import annotations

import pytest

from hpctrain.slurm.output import parse_job, parse_queue, parse_step_owners
from hpctrain.slurm.waiting import look_up

STEPS = """\
StepId=81.batch UserId=0 StartTime=2026-11-23T18:48:28 TimeLimit=UNLIMITED State=RUNNING \
Partition=main NodeList=node1 Nodes=1 CPUs=0 Tasks=1 Name=batch Network=(null) TRES=(null) \
ResvPorts=(null) CPUFreqReq=Default SrunHost:Pid=(null):0
StepId=81.0 UserId=0 StartTime=2026-11-23T18:48:28 TimeLimit=UNLIMITED State=RUNNING \
Partition=main NodeList=node[1-4] Nodes=4 CPUs=4 Tasks=4 Name=hydra_pmi_proxy Network=(null) \
TRES=cpu=4,mem=8G,node=4 ResvPorts=(null) CPUFreqReq=Default Dist=Cyclic SrunHost:Pid=node1:8849
"""


def test_the_srun_of_each_step_is_read_and_a_batch_script_has_none() -> None:
    assert parse_step_owners(STEPS) == {"81.0": ("node1", 8849)}
    assert parse_step_owners("No job steps in the system") == {}


@pytest.mark.parametrize("user", ["me", r"DOM\first last"])
@pytest.mark.parametrize("group", ["me", "domain users"])
@pytest.mark.parametrize(
    "name",
    ["run", "a UserId=x JobState=FAILED", "a UserId=x(1) GroupId=x y(1) JobState=FAILED"],
)
def test_a_job_is_read_whatever_its_user_and_group_and_the_job_itself_are_called(
    user: str, group: str, name: str
) -> None:
    job = parse_job(
        f"JobId=12 JobName={name} UserId={user}(1000) GroupId={group}(1001) MCS_label=N/A "
        f"Account=(null) QOS=(null) JobState=PENDING Reason=Priority Command=/run/batch.sh\n"
    )
    assert job is not None
    assert (job.user, job.state, job.reason) == (user, "PENDING", "Priority")


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        ("Priority", "Priority"),
        ("job requeued in held state", "job_requeued_in_held_state"),
        ("launch failed requeued held", "launch_failed_requeued_held"),
        ("ReqNodeNotAvail, UnavailableNodes:node3", "ReqNodeNotAvail,_UnavailableNodes:node3"),
        (
            "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority "
            "partitions",
            "Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_"
            "partitions",
        ),
    ],
)
def test_a_reason_of_squeue_is_that_of_scontrol(printed: str, reason: str) -> None:
    job = parse_queue(f"7|PENDING|{printed}\n")["7"]
    assert job.reason == reason
    assert look_up(job.reason).meaning != look_up("Unheard").meaning
