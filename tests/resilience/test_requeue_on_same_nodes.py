"""A job that is queued again finds nothing on its nodes of what its ranks had there before."""

from __future__ import annotations

from typing import Any

import pytest

from hpctrain.worker.leftovers import segment_name

pytestmark = pytest.mark.slurm
NODE = "node1"


def requeue(disturbed: Any, job_id: str) -> None:
    disturbed.slurm("scontrol", "requeue", job_id)
    disturbed.wait_for(
        lambda: disturbed.slurm("squeue", "-h", "-o", "%T", "-j", job_id) == "PENDING",
        f"job {job_id} to be pending",
    )


def leave_dead_segments(disturbed: Any, job_id: str) -> None:
    """Leave on the node what ranks leave that are killed in MPI_Init: whoever opens it waits."""
    names = [f"/dev/shm/{segment_name(f'{job_id}.{step}', node=0)}" for step in range(3)]
    disturbed.cluster.run_on(NODE, ["touch", *names])


def shared_memory(disturbed: Any) -> set[str]:
    return set(disturbed.cluster.run_on(NODE, ["ls", "/dev/shm"]).stdout.split())


@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.long)])
def test_each_requeue_of_a_healthy_run_costs_one_attempt(disturbed: Any, times: int) -> None:
    before = shared_memory(disturbed)
    disturbed.start("--workers=3", "--nodes=1", f"--sbatch=--nodelist={NODE}")
    disturbed.wait_for_step(12)
    job_id = disturbed.job_id()
    assert shared_memory(disturbed) == before, "nobody needs a name any more"
    if times == 2:
        requeue(disturbed, job_id)
        disturbed.wait_for_step(32)
    requeue(disturbed, job_id)
    leave_dead_segments(disturbed, job_id)
    result = disturbed.finish()
    kinds = [event["kind"] for event in disturbed.events("attempt-ended")]
    assert kinds == [*["preemption"] * times, None]
    assert len(result.attempts) == times + 1
    assert shared_memory(disturbed) == before


def test_ranks_that_srun_started_go_on_after_a_requeue(disturbed: Any) -> None:
    before = shared_memory(disturbed)
    command = "srun --mpi=pmi2 {python} train.py --workers=2 --nodes=1"
    job_id = disturbed.submit(command, "--nodes=1", "--ntasks=2", f"--nodelist={NODE}")
    disturbed.wait_for_step(12)
    requeue(disturbed, job_id)
    leave_dead_segments(disturbed, job_id)
    result = disturbed.finish_job(job_id)
    assert len(result.attempts) == 2
    assert disturbed.events("attempt-started")[1]["first_report"] >= 10
    assert shared_memory(disturbed) == before
