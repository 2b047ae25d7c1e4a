"""One job of Slurm, asked about politely."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hpctrain.execute.slurm_command import run_slurm

_FINAL = frozenset(
    [
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "TIMEOUT",
    ]
)


@dataclass(frozen=True, kw_only=True)
class JobState:
    """What Slurm says of a job."""

    job_id: str
    state: str
    """``PENDING``, ``RUNNING``, ``FAILED``, ... as ``man squeue`` lists them."""
    reason: str
    exit_code: str
    """``status:signal``."""
    nodes: str

    @property
    def is_final(self) -> bool:
        """Whether the job will not run any more."""
        return self.state in _FINAL


def job_state(job_id: str) -> JobState | None:
    """Return what Slurm's controller says of a job, or None if it has forgotten it.

    Not collective. Works without accounting; the controller forgets a job some minutes after its
    end (MinJobAge).

    Raises
    ------
    LaunchError
        If the controller does not answer.
    """
    answer = run_slurm(["scontrol", "--oneliner", "show", "job", job_id])
    if answer.returncode != 0:
        from hpctrain.errors import LaunchError

        if "Invalid job id" in answer.stderr + answer.stdout:
            return None
        raise LaunchError(f"scontrol show job {job_id}: {answer.stderr.strip()}", transient=True)
    return parse_job(answer.stdout)


def parse_job(output: str) -> JobState | None:
    """Return a job from the output of ``scontrol --oneliner show job``. Pure; not collective."""
    fields = dict(re.findall(r"(\w+)=(\S*)", output))
    if "JobId" not in fields:
        return None
    return JobState(
        job_id=fields["JobId"],
        state=fields["JobState"],
        reason=fields.get("Reason", ""),
        exit_code=fields.get("ExitCode", ""),
        nodes=fields.get("NodeList", ""),
    )


def explain_end(job: JobState, *, storage: str, said: str) -> str:
    """Return why a job ended before its executor said anything. Pure; not collective."""
    lines = [f"job {job.job_id} ended ({job.state}, ExitCode {job.exit_code}, Reason {job.reason})"]
    if job.exit_code.startswith("0:53") or job.exit_code.startswith("53"):
        # Slurm's answer when the directory of --output is not there (measured with 22.05).
        lines.append(
            f"before it could write its log: the nodes ({job.nodes}) do not see {storage}. Choose "
            f"a RunConfig(storage_path=...) on the filesystem that login and compute nodes share."
        )
    else:
        lines.append("before the executor of the run said anything.")
    if said:
        lines.append(f"It said:\n{said}")
    return " ".join(lines)
