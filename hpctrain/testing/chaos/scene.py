"""`Script` and `Scene`: what a trial runs, and what a fault from outside finds there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.status import read_status
from hpctrain.testing.chaos.fault import Fault
from hpctrain.testing.chaos.processes import TrialProcess, find_processes
from hpctrain.testing.slurm import ClusterError, VirtualCluster


@dataclass(frozen=True, kw_only=True)
class Script:
    """A program that calls ``fit()``."""

    path: Path
    args: tuple[str, ...] = ()
    cwd: Path = field(default_factory=Path.cwd)
    sweep: str = ""
    """Name of the sweep that its ``Tuner`` runs in the folder that ``CHAOS_STORAGE`` names; empty
    if it runs runs. On a cluster it is started in an allocation."""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """State at the beginning of a fault from outside."""

    folder: Path
    """Of the trial."""
    script: Script
    cluster: VirtualCluster | None
    fault: Fault
    damaged: dict[str, float]
    """Gets the time at which a checkpoint was damaged, by ``RUN/checkpoints/NAME``."""

    @property
    def storage(self) -> Path:
        """Storage of the runs of the script."""
        return self.folder / "storage"

    @property
    def trial_prefix(self) -> str:
        """What the roles begin with that belong to the same trial of a sweep; empty elsewhere."""
        trial = self.fault.point.trial
        return f"{trial}/" if trial else ""

    def runs(self) -> list[Path]:
        """Return the directories of the runs of the script; of a sweep that of the trial."""
        if trial := self.fault.point.trial:
            return [self.storage / self.script.sweep / trial]
        return [path for path in (self.storage / self.script.sweep).iterdir() if path.is_dir()]

    def processes(self) -> list[TrialProcess]:
        """Return the living processes of the trial."""
        local = self.cluster is None and not self.script.sweep
        return find_processes(self.folder, script=str(self.script.path), local=local)

    def process(self, role: str) -> TrialProcess:
        """Return the one process that has a role."""
        found = [process for process in self.processes() if process.role == role]
        if len(found) != 1:
            raise ClusterError(f"there is no {role} to act on, but: {self.processes()}")
        return found[0]

    def slurm(self) -> VirtualCluster:
        """Return the cluster, of which there must be one."""
        assert self.cluster is not None
        return self.cluster

    def job_id(self) -> str:
        """Return the job that runs now."""
        ids = job_ids(self.runs())
        if not ids:
            raise ClusterError(f"no run in {self.storage} has a job")
        return ids[0]


Act = Callable[[Scene], Iterator[None]]
"""Brings a fault about until its ``yield``, while the process waits; then goes on, or cleans up."""


def job_ids(runs: Iterable[Path]) -> list[str]:
    """Return the jobs that runs are in, or were. Not collective."""
    statuses = (read_status(RunPaths(root)) for root in runs)
    return [status.job_id for status in statuses if status is not None and status.job_id]
