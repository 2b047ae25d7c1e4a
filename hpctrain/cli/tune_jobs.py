"""The Slurm jobs of the trials of a sweep, for ``hpctrain tune status``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpctrain.tune.ledger import SweepPaths, SweepRecord


@dataclass(frozen=True, kw_only=True)
class TrialJob:
    """The job of a trial."""

    job_id: str | None = None
    state: str | None = None
    """Slurm's state of it; None if its run is over, or Slurm does not know it."""
    reason: str | None = None
    """Slurm's reason why it is pending."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields of a trial that ``--json`` prints."""
        return {"job_id": self.job_id, "job_state": self.state, "job_reason": self.reason}

    @property
    def wait(self) -> str:
        """Why it waits; empty if it does not."""
        if self.state != "PENDING":
            return ""
        return f"waits ({self.reason})" if self.reason else "waits"


def find_jobs(paths: SweepPaths, record: SweepRecord) -> Mapping[str, TrialJob]:
    """Return the jobs of trials by name; none of a sweep whose trials are no jobs.

    Not collective. Queries Slurm once for all trials whose runs are not over.
    """
    if record.started.get("launcher") != "slurm":
        return {}
    from hpctrain.cli.run_view import view_runs
    from hpctrain.rundir.paths import RunPaths
    from hpctrain.rundir.status import read_status

    jobs, live = {}, {}
    for trial_id in record.trials:
        run = RunPaths(paths.run(trial_id))
        try:
            status = read_status(run)
        except OSError:
            # A run of another user that cannot be read hides no others.
            continue
        if status is None:
            continue
        jobs[trial_id] = TrialJob(job_id=status.job_id)
        if not status.state.is_final:
            live[trial_id] = run
    for trial_id, view in zip(live, view_runs(list(live.values())), strict=True):
        jobs[trial_id] = TrialJob(
            job_id=view.status.job_id, state=view.job_state, reason=view.job_reason
        )
    return jobs
