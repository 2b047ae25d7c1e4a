"""A job, or its executor alone, that stands still for longer than a silent node is waited for."""

from __future__ import annotations

import time
from typing import Any

import pytest

from hpctrain import Result

pytestmark = pytest.mark.slurm

NODE_TIMEOUT_S = 5
# Agents were heard up to two seconds before.
STANDSTILL_S = 9.0
STEPS = 120


def test_a_job_that_slurm_suspends_goes_on_with_its_nodes(disturbed: Any) -> None:
    disturbed.start("--steps", str(STEPS), "--node-timeout", str(NODE_TIMEOUT_S))
    disturbed.wait_for_step(12)
    job_id = disturbed.job_id()
    disturbed.slurm("scontrol", "suspend", job_id)
    disturbed.wait_for(lambda: state(disturbed, job_id) == "SUSPENDED", "the suspension")
    time.sleep(STANDSTILL_S)
    disturbed.slurm("scontrol", "resume", job_id)
    step = 30
    disturbed.wait_for_step(step)

    # Now its executor alone, while its agents go on.
    status = Result.from_path(disturbed.run_dir).status
    for signal, seconds in (("-STOP", STANDSTILL_S), ("-CONT", 0.0)):
        kill = ["kill", signal, str(status.owner_pid)]
        answer = disturbed.cluster.run_on(status.owner_host, kill, timeout_s=30)
        assert answer.returncode == 0, answer.stderr
        time.sleep(seconds)

    result = disturbed.finish(steps=STEPS)
    assert [attempt.cause for attempt in result.attempts] == ["finished"], disturbed.logs()
    assert not disturbed.events("node-lost")


def state(disturbed: Any, job_id: str) -> str:
    answer: str = disturbed.slurm("squeue", "--noheader", "--format=%T", f"--job={job_id}")
    return answer
