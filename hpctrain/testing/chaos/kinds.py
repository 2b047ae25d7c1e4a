"""The kinds of faults: where each may strike, how it comes about, and where it can be had."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from hpctrain.testing.chaos import acts
from hpctrain.testing.chaos.fault import Entry, Fault, Point
from hpctrain.testing.chaos.injector import ANNOUNCE
from hpctrain.testing.chaos.outcome import committed_report
from hpctrain.testing.chaos.scene import Act

Needs = Literal["nothing", "root", "slurm", "nodes"]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of fault."""

    name: str
    meaning: str
    """For people: what happens, and to what."""
    points: Callable[[Sequence[Entry]], list[Point]]
    """Where it may strike, from the trace of the undisturbed trial."""
    act: str = ANNOUNCE
    bring_about: Act | None = None
    """The fault from outside; None if the process injects it itself."""
    errno: int = 0
    attempts: int = 1
    """Attempts more that such a fault costs, at most."""
    usual: bool = True
    """Whether `hpctrain chaos` uses it without being asked to."""
    needs: Needs = "nothing"
    """``root``: mounts a filesystem; ``slurm``: a cluster; ``nodes``: one whose nodes are machines
    of their own, with power and network."""

    def draw(self, trace: Sequence[Entry], chance: random.Random) -> Fault:
        """Return a fault of this kind at a random one of its points."""
        # Processes take turns as they like, so the order of a trace is no two times the same.
        points = sorted(self.points(trace), key=str)
        if not points:
            raise ValueError(f"{self.name}: the undisturbed run came by no point for it")
        return self.at(chance.choice(points), amount=chance.random())

    def at(self, point: Point, *, amount: float = 0.5) -> Fault:
        """Return a fault of this kind at a point."""
        return Fault(kind=self.name, point=point, act=self.act, errno=self.errno, amount=amount)


def starts(trace: Sequence[Entry]) -> list[Point]:
    """Return the stages of every rank's start, up to where it is in the MPI world."""
    return _distinct(e.point for e in trace if e.point.op == "start")


def reports(trace: Sequence[Entry]) -> list[Point]:
    """Return the begin of every report of every rank."""
    return [e.point for e in trace if e.point.op == "report" and e.point.moment == "before"]


def reports_with_checkpoint(trace: Sequence[Entry]) -> list[Point]:
    """Return the begin of every report that comes after a report with a checkpoint."""
    first = min((number for e in trace if (number := committed_report(e))), default=None)
    if first is None:
        return []
    return [p for p in reports(trace) if int(p.path.removeprefix("report-")) > first]


def commit_points(trace: Sequence[Entry]) -> list[Point]:
    """Return what is done to files of checkpoints, by ranks and the executor."""
    # Not mkdir: which of the ranks makes a directory for all is no two times the same.
    found = (e.point for e in trace if _is_of_checkpoint(e.point))
    return _distinct(point for point in found if point.op != "mkdir")


def file_points(trace: Sequence[Entry]) -> list[Point]:
    """Return the begin of everything that is done to files of the run."""
    ops = {"open", "write", "fsync", "rename", "link"}
    return _distinct(e.point for e in trace if e.point.op in ops and e.point.moment == "before")


def synced_files(trace: Sequence[Entry]) -> list[Point]:
    """Return the begin of every fsync of a file of a checkpoint."""
    folders = {e.point.path.rpartition("/")[0] for e in trace}
    return [
        point
        for point in commit_points(trace)
        if (point.op, point.moment) == ("fsync", "before") and point.path not in folders
    ]


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(name="kill-rank", meaning="SIGKILL a rank at a report", points=reports, act="kill"),
        Kind(
            name="kill-commit",
            meaning="SIGKILL a rank or the executor while a checkpoint is written",
            points=commit_points,
            act="kill",
        ),
        Kind(
            name="torn-write",
            meaning="cut off a file that is about to be made durable, and SIGKILL its writer",
            points=synced_files,
            act="torn",
        ),
        Kind(
            name="io-error",
            meaning="let one call on a file fail with an I/O error (EIO)",
            points=file_points,
            act="error",
            errno=errno.EIO,
        ),
        Kind(
            name="no-space",
            meaning="let one call on a file fail for lack of space (ENOSPC)",
            points=file_points,
            act="error",
            errno=errno.ENOSPC,
        ),
        Kind(
            name="bit-flip",
            meaning="flip a bit of the newest checkpoint, and SIGKILL a rank",
            points=reports_with_checkpoint,
            bring_about=acts.flip_bit,
        ),
        Kind(
            name="truncate",
            meaning="cut off a file of the newest checkpoint, and SIGKILL a rank",
            points=reports_with_checkpoint,
            bring_about=acts.truncate,
        ),
        Kind(
            name="full-disk",
            meaning="fill the filesystem of the storage, and free it when a rank has failed",
            points=reports,
            bring_about=acts.fill_storage,
            needs="root",
        ),
        Kind(
            name="brief-full-disk",
            meaning="fill the filesystem of the storage, and free it 3 s later",
            points=reports,
            bring_about=acts.fill_storage_briefly,
            needs="root",
        ),
        Kind(
            name="stop-rank",
            meaning="SIGSTOP a rank at a report; for runs with FailureConfig(hang_timeout_s=...)",
            points=reports,
            act="stop",
            usual=False,
        ),
        Kind(
            name="kill-executor",
            meaning="SIGKILL the executor",
            points=reports,
            bring_about=acts.kill_executor,
        ),
        Kind(
            name="kill-supervisor",
            meaning="SIGKILL the supervisor in the job",
            points=reports,
            bring_about=acts.kill_supervisor,
            needs="slurm",
        ),
        Kind(
            name="requeue",
            meaning="scontrol requeue, without a warning",
            points=reports,
            bring_about=acts.requeue,
            needs="slurm",
        ),
        Kind(
            name="requeue-hold",
            meaning="scontrol requeuehold, without a warning, and release",
            points=reports,
            bring_about=acts.requeue_and_hold,
            needs="slurm",
        ),
        Kind(
            name="fallback",
            meaning="SIGKILL a rank while it starts: the next start is by mpiexec, not srun",
            points=starts,
            act="kill",
            needs="slurm",
        ),
        Kind(
            name="suspend",
            meaning="scontrol suspend, and 9 s later resume",
            points=reports,
            bring_about=acts.suspend,
            attempts=0,
            needs="slurm",
        ),
        Kind(
            name="stop-signal",
            meaning="the warning before the time limit: SIGUSR2 to the job's steps",
            points=reports,
            bring_about=acts.warn,
            needs="slurm",
        ),
        Kind(
            name="preempt",
            meaning="a job of a partition with a higher priority takes all nodes",
            points=reports,
            bring_about=acts.preempt,
            needs="slurm",
        ),
        Kind(
            name="restart-controller",
            meaning="kill slurmctld, and start it again",
            points=reports,
            bring_about=acts.restart_controller,
            attempts=0,
            needs="slurm",
        ),
        Kind(
            name="power-off",
            meaning="take the power from a node, but not the executor's; give it back later",
            points=reports,
            bring_about=acts.power_off,
            needs="nodes",
        ),
        Kind(
            name="power-off-executor",
            meaning="take the power from the executor's node; give it back later",
            points=reports,
            bring_about=acts.power_off_executor,
            needs="nodes",
        ),
        Kind(
            name="cut-network",
            meaning="take a node off the network for 3 s",
            points=reports,
            bring_about=acts.cut_network,
            attempts=0,
            needs="nodes",
        ),
    )
}

ACTS: dict[str, Act] = {
    kind.name: kind.bring_about for kind in KINDS.values() if kind.bring_about is not None
}


def _is_of_checkpoint(point: Point) -> bool:
    ours = point.role.rpartition("/")[2].startswith(("rank-", "executor"))
    return ours and "/checkpoints/" in point.path


def _distinct(points: Iterable[Point]) -> list[Point]:
    return list(dict.fromkeys(points))
