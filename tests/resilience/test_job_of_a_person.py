"""A run in a job that a person wrote leaves before its end, whatever Slurm was asked to send."""

from __future__ import annotations

import shlex
import sys
import time
from typing import Any

import pytest

from hpctrain.rundir.files import write_atomic

pytestmark = pytest.mark.slurm


# Bounded: a job that nobody needs any more ends by itself.
AWAIT = "for _ in $(seq 600); do test -e go && break; sleep 0.1; done"
# Slurm 23.02 and newer say in the environment when the job ends, as of its start.
END = 'test -z "$SLURM_JOB_END_TIME" || export SLURM_JOB_END_TIME=$(cat go)'


@pytest.fixture
def own_job(disturbed: Any) -> str:
    """Return the id of a running job that a person wrote; it begins the run once `go` is there."""
    disturbed.write_script()
    command = f"exec {shlex.quote(sys.executable)} train.py --asks --nodes=1 --steps=100000"
    # A name by which what is left of it is ended.
    text = f"#!/bin/bash\n#SBATCH -J run -n 2 -t 5 -o job.out\n{AWAIT}\n{END}\n{command}\n"
    (disturbed.path / "job.sh").write_text(text)
    job_id: str = disturbed.slurm(
        "sbatch", "--parsable", f"--chdir={disturbed.path}", str(disturbed.path / "job.sh")
    )
    assert job_id.isdigit()
    state = ("squeue", "--noheader", "--format=%T", f"--jobs={job_id}")
    disturbed.wait_for(lambda: disturbed.slurm(*state) == "RUNNING", "the job")
    return job_id


def said(disturbed: Any) -> str:
    disturbed.wait_for(lambda: disturbed.events("run-ended"), "the end of the run")
    text: str = disturbed.events("run-ended")[0]["error"]
    return text


def test_a_job_without_a_signal_is_left_before_its_limit(disturbed: Any, own_job: str) -> None:
    # Limits are whole minutes, but an administrator may move the end.
    end = int(time.time()) + 20
    moved = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(end))
    disturbed.slurm("scontrol", "update", f"JobId={own_job}", f"EndTime={moved}")
    write_atomic(disturbed.path / "go", str(end).encode())
    error = said(disturbed)
    assert f"the run stopped because the time limit of job {own_job} ends" in error
    assert "fit() with the same name resumes it from" in error
    (attempt,) = disturbed.events("attempt-ended")
    assert attempt["kind"] == "time-limit"
    # It saved at the report at which it left, in the job's own time.
    assert attempt["saved"] == attempt["reports"] > 0
    assert attempt["time"] < end


@pytest.mark.parametrize("to", ["steps", "batch"])
def test_a_signal_of_a_persons_own_choice_is_a_warning(
    disturbed: Any, own_job: str, to: str
) -> None:
    (disturbed.path / "go").touch()
    disturbed.wait_for_step(12)
    # As with --signal=USR1@60 and --signal=B:USR1@60.
    where = ["--batch"] if to == "batch" else []
    disturbed.slurm("scancel", "--signal=USR1", *where, own_job)
    assert f"the run stopped because job {own_job} got SIGUSR1" in said(disturbed)
    (attempt,) = disturbed.events("attempt-ended")
    assert attempt["saved"] == attempt["reports"] >= 12
