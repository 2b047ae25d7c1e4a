"""Where everything of a run lies."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path


@dataclass(frozen=True)
class RunPaths:
    """The paths inside a run directory. Nothing here touches the disk."""

    root: Path
    """The run directory, ``storage_path/name``."""

    @cached_property
    def plan(self) -> Path:
        """Request, versions, git state."""
        return self.root / "plan.json"

    @cached_property
    def spec(self) -> Path:
        """What each rank runs."""
        return self.root / "spec.pkl"

    @cached_property
    def code(self) -> Path:
        """Commit and uncommitted changes of the script's tree."""
        return self.root / "code.json"

    @cached_property
    def code_patch(self) -> Path:
        """These changes, for ``git apply``."""
        return self.root / "code.patch"

    @cached_property
    def ledger(self) -> Path:
        """Every attempt, one line an event."""
        return self.root / "ledger.jsonl"

    @cached_property
    def status(self) -> Path:
        """State and last progress."""
        return self.root / "status.json"

    @cached_property
    def live(self) -> Path:
        """How far each rank is, and what the nodes do, for those who look at the run."""
        return self.root / "live.json"

    @cached_property
    def metrics(self) -> Path:
        """One line a report of rank 0."""
        return self.root / "metrics.jsonl"

    @cached_property
    def return_value(self) -> Path:
        """What rank 0's training function returned."""
        return self.root / "return_value.pkl"

    @cached_property
    def checkpoints(self) -> Path:
        """Directory of checkpoints."""
        return self.root / "checkpoints"

    @cached_property
    def artifacts(self) -> Path:
        """Directory for whatever else ranks write."""
        return self.root / "artifacts"

    @cached_property
    def submission(self) -> Path:
        """Directory of the batch jobs: their script and output."""
        return self.root / "slurm"

    @cached_property
    def batch_script(self) -> Path:
        """The script that the run's jobs are submitted with."""
        return self.submission / "batch.sh"

    @cached_property
    def stop_request(self) -> Path:
        """Its existence asks the executor to stop the run."""
        return self.root / "stop"

    @cached_property
    def profile_request(self) -> Path:
        """Its content asks the executor to let ranks be profiled."""
        return self.root / "profile"

    def profile(self, name: str) -> Path:
        """Directory of the traces of one profile."""
        return self.root / "profiles" / name

    def trace_of_rank(self, name: str, rank: int) -> Path:
        """Trace of one rank for a profile."""
        return self.profile(name) / f"rank-{rank:05d}.json"

    @cached_property
    def executor_log(self) -> Path:
        """Output of an executor in the background, without a job of its own."""
        return self.root / "executor.log"

    def job_log(self, job_id: str) -> Path:
        """Output of a job's batch script, the executor's included."""
        return self.submission / f"{job_id}_0_log.out"

    def claim(self, number: int) -> Path:
        """Directory with the process that starts the run; the largest number counts."""
        return self.root / f".claim-{number}"

    def executor(self, number: int) -> Path:
        """File with the executor that may write; the largest number counts."""
        return self.root / f".executor-{number}"

    def lease(self, attempt: int) -> Path:
        """File of an agent that continues a run whose executor was lost."""
        return self.root / f".lease-{attempt}"

    def logs(self, attempt: int) -> Path:
        """Directory of the logs of an attempt."""
        return self.root / "logs" / str(attempt)

    def rank_log(self, attempt: int, rank: int) -> Path:
        """Output of one rank."""
        return self.logs(attempt) / f"rank-{rank:05d}.out"

    def launcher_log(self, attempt: int) -> Path:
        """Output of srun or mpiexec, and of ranks before they know their number."""
        return self.logs(attempt) / "launcher.out"

    def spare_log(self, attempt: int) -> Path:
        """Output of srun for the ranks that wait for the end of an attempt, to follow it."""
        return self.logs(attempt) / "spare-launcher.out"

    def container_log(self, attempt: int) -> Path:
        """Output of the containers of ranks, when they are tried before the first start."""
        return self.logs(attempt) / "container.out"

    def environment_log(self, attempt: int) -> Path:
        """Output of the nodes that unpack the environment of ranks."""
        return self.logs(attempt) / "environment.out"

    def validation_log(self, attempt: int, report: int) -> Path:
        """Output of the validation of a report's checkpoint."""
        return self.logs(attempt) / f"validation-{report:06d}.out"

    def validation_result(self, attempt: int, report: int) -> Path:
        """Its metrics, until the executor has taken them in."""
        return self.validation_log(attempt, report).with_suffix(".json")

    def validation_failure(self, attempt: int, report: int) -> Path:
        """Why it failed: what its function raised."""
        return self.validation_log(attempt, report).with_suffix(".failure.json")

    def validation_job(self, attempt: int, report: int) -> Path:
        """Script of the job that validates the checkpoint which a report of an attempt made."""
        return self.submission / f"validation-{attempt}-{report:06d}.sh"

    def stacks(self, attempt: int) -> Path:
        """Directory of where ranks were when they made no progress."""
        return self.root / "stacks" / str(attempt)

    def stacks_of_rank(self, attempt: int, rank: int) -> Path:
        """Where one rank was when ranks made no progress."""
        return self.stacks(attempt) / f"rank-{rank:05d}.txt"

    def failure(self, attempt: int, rank: int) -> Path:
        """Why a rank failed."""
        return self.root / "failures" / str(attempt) / f"rank-{rank:05d}.json"
