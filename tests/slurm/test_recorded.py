"""What each Slurm really prints, as ``tests/slurm/record.sh`` has recorded it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from hpctrain.slurm.cluster_output import parse_node_states
from hpctrain.slurm.output import parse_job
from hpctrain.slurm.partitions import parse_partitions
from hpctrain.slurm.pmi import parse_pmi_types

RECORDED = sorted(Path(__file__).with_name("recorded").iterdir())
pytestmark = pytest.mark.parametrize("recorded", RECORDED, ids=[path.name for path in RECORDED])


def read(recorded: Path, name: str) -> str:
    return (recorded / f"{name}.out").read_text()


def test_no_word_of_a_user_is_taken_for_a_field_of_the_job(recorded: Path) -> None:
    output = read(recorded, "show-running")
    assert "JobState=FAILED two words" in output
    assert "NodeList=node9" in output
    job = parse_job(output)
    assert job is not None
    assert job.state == "RUNNING"
    assert job.nodes == "node[1-2]"
    assert (job.restarts, job.reason, job.exit_code) == (0, "None", "0:0")
    assert job.is_batch
    assert job.may_requeue
    assert not job.is_preempted
    assert job.end_time is not None


def test_the_text_says_what_slurms_own_json_says(recorded: Path) -> None:
    content = read(recorded, "show-json")
    job = parse_job(read(recorded, "show-running"))
    assert job is not None
    if not content.startswith("{"):
        # Slurm 22.05 has no JSON of jobs, as others whose site left out its plugin.
        assert recorded.name.startswith("22.")
        return
    (said,) = json.loads(content)["jobs"]
    # With names and a comment that look like fields, between which only the text has no quotes.
    assert said["name"] == "JobState=FAILED two words"
    assert said["comment"] == "NodeList=node9 JobState=FAILED Restarts=7"
    assert (job.job_id, [job.state]) == (str(said["job_id"]), said["job_state"])
    assert (job.nodes, job.reason) == (said["nodes"], said["state_reason"])
    assert (job.restarts, job.may_requeue) == (said["restart_cnt"], said["requeue"])
    assert job.is_batch == said["batch_flag"]
    number, signal = said["exit_code"]["return_code"]["number"], said["exit_code"]["signal"]
    assert job.exit_code == f"{number}:{signal['id']['number']}"
    assert job.end_time is not None
    # The text is in local time, which is UTC where it was recorded.
    assert abs(job.end_time - time.timezone - said["end_time"]["number"]) < 1.5


def test_pending_jobs_of_every_kind_have_a_state_and_a_reason(recorded: Path) -> None:
    jobs = [parse_job(line) for line in read(recorded, "show-jobs").splitlines() if line]
    assert {job.state for job in jobs if job is not None} == {"RUNNING", "PENDING"}
    reasons = {job.reason for job in jobs if job is not None and job.state == "PENDING"}
    assert "JobHeldUser" in reasons
    assert "PartitionDown" in reasons


def test_an_unknown_job_is_none(recorded: Path) -> None:
    output = read(recorded, "show-unknown")
    assert "Invalid job id" in output
    assert parse_job(output) is None


def test_nodes_and_partitions_are_read(recorded: Path) -> None:
    assert set(parse_node_states(read(recorded, "show-node"))) == {"node1", "node2", "node3"}
    partition = parse_partitions(read(recorded, "sinfo"), None)
    assert (partition.name, partition.num_nodes, partition.node_shape.gpus) == ("main", 3, 2)
    assert not parse_partitions(read(recorded, "sinfo"), "down").available


def test_the_pmi_types_are_read(recorded: Path) -> None:
    assert {"none", "pmi2"} <= parse_pmi_types(read(recorded, "mpi-list"))
