"""`RunView`: the state of a run, from its directory and from Slurm."""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpctrain.errors import DamagedFileError, LaunchError
from hpctrain.own_time import Deadline
from hpctrain.rundir.ledger import read_events
from hpctrain.rundir.metrics import read_last_report
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.plan import read_plan
from hpctrain.rundir.run_record import RunRecord
from hpctrain.rundir.states import RunEvent, RunState
from hpctrain.rundir.status import RunStatus, read_status
from hpctrain.rundir.store import CheckpointStore

if TYPE_CHECKING:
    from hpctrain.launch.life import LifeTest
    from hpctrain.slurm.job import Queue
    from hpctrain.slurm.output import Job
    from hpctrain.tune.overview import SweepOverview

# Slurm keeps a job for some minutes after its end (MinJobAge), in which it can be requeued.
_LONG_SILENCE_S = 3600.0
# An executor usually writes its status every two seconds, on a busy machine later.
GLANCE_S = 5.0
GLANCE_INTERVAL_S = 1.0
_CHECKPOINT_NAME = re.compile(r"\d{6,}")


@dataclass(frozen=True, kw_only=True)
class RunView:
    """The state of a run at one moment. Times are seconds since the epoch."""

    name: str
    path: Path
    state: str
    """A `RunState`; ``lost`` if it has not ended and has no executor; ``prepared`` before that."""
    live: bool | None
    """Whether an executor runs it or will run it; None if Slurm could not be queried."""
    status: RunStatus
    job_state: str | None = None
    """Slurm's state of its job, if Slurm was queried."""
    job_reason: str | None = None
    """Slurm's reason why it is pending or ended."""
    reports: int = 0
    """Number of the last report."""
    reported_at: float | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """Rank 0's last metrics."""
    checkpoint: Path | None = None
    """The newest complete checkpoint."""
    next_step: str | None = None
    """The suggested next step."""
    slow_nodes: tuple[str, ...] = ()
    """What the ledger says of nodes that were slow, if it was asked."""
    sweep: SweepOverview | None = None
    """Of a sweep, which is listed among runs; None of a run."""

    @property
    def recorded_name(self) -> str:
        """Its name when it began, if its directory has another one by now; otherwise empty."""
        # A link to it has a name of its own.
        names = (self.name, Path(os.path.realpath(self.path)).name)
        return "" if self.status.name in names else self.status.name

    @property
    def lacks_answer(self) -> bool:
        """Whether only Slurm knows if an executor runs it, and did not answer."""
        of_slurm = self.status.launcher == "slurm" or self.status.state is RunState.SUBMITTING
        return self.live is None and of_slurm and not self.status.state.is_final

    @property
    def has_started(self) -> bool:
        """Whether the time of its begin is known: that of a job that waits is its submission."""
        from hpctrain.rundir.live_text import describe_begin

        return describe_begin(self.status) == "started"

    @property
    def is_over(self) -> bool:
        """Whether no executor runs it or will run it."""
        return self.state in ("lost", "prepared") or self.status.state.is_final

    @property
    def stops(self) -> bool:
        """Whether it is running and stopping."""
        return bool(self.live) and self.status.phase.startswith("stopping")

    @property
    def shown_state(self) -> str:
        """The state in one word, for display."""
        return "stopping" if self.stops else self.state

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``--json`` prints."""
        status = self.status
        sweep = {} if self.sweep is None else {"sweep": self.sweep.to_json()}
        return {
            "name": self.name,
            "recorded_name": self.recorded_name or None,
            "path": str(self.path),
            "state": self.state,
            "live": self.live,
            "launcher": status.launcher,
            "job_id": status.job_id,
            "job_state": self.job_state,
            "job_reason": self.job_reason,
            "attempt": status.attempt,
            "world_size": status.world_size,
            "nodes": list(status.nodes),
            "phase": status.phase,
            "stalled": status.stalled,
            "slow": status.slow,
            "last_restart": status.last_restart,
            "deadline": status.deadline,
            "reports": self.reports,
            "reported_at": self.reported_at,
            "metrics": dict(self.metrics),
            "checkpoint": None if self.checkpoint is None else str(self.checkpoint),
            "started_at": status.started_at if self.has_started else None,
            "updated_at": status.updated_at or None,
            "ended_at": status.ended_at,
            "error": status.error,
            "damage": status.damage or None,
            "next": self.next_step,
            **sweep,
        }


def view_runs(runs: Sequence[RunPaths]) -> list[RunView]:
    """Return the state of runs. Not collective. Queries Slurm once for all of them."""
    from hpctrain.slurm.job import Queue

    # The owner of a run's directory submitted its job.
    queue = Queue(paths.root.stat().st_uid for paths in runs)
    looks = [_Look(paths, queue) for paths in runs]
    return _look_again(looks, [_view_or_damage(look) for look in looks])


def _look_again(looks: Sequence[_Look], views: list[RunView]) -> list[RunView]:
    """Watch runs of other hosts, for as long as a live one takes to write its status.

    All are watched at the same time.
    """
    deadline = Deadline(GLANCE_S)
    while not deadline.is_over:
        open_ = [n for n, look in enumerate(looks) if views[n].live is None and look.is_watching]
        if not open_:
            break
        time.sleep(GLANCE_INTERVAL_S)
        for n in open_:
            views[n] = _view_or_damage(looks[n])
    return views


def _view_or_damage(look: _Look) -> RunView:
    """Return the state of a run; an unreadable one does not hide others."""
    paths = look.paths
    try:
        return _view(look)
    except (DamagedFileError, OSError) as error:
        status = RunStatus(
            name=paths.root.name, state=RunState.STOPPED, launcher="", damage=str(error)
        )
        return RunView(name=status.name, path=paths.root, state="unread", live=None, status=status)


def view_run(paths: RunPaths) -> RunView:
    """Return the state of a run. Not collective. Queries Slurm once if its job is alive."""
    look = _Look(paths, None)
    return _look_again([look], [_view(look)])[0]


class _Look:
    """Check the executor of a run, once or several times.

    Parameters
    ----------
    queue
        Used instead of a query to Slurm; then jobs that Slurm no longer lists are recorded in the
        ledger, and not queried again.
    """

    def __init__(self, paths: RunPaths, queue: Queue | None) -> None:
        self.paths = paths
        self.job: Job | None = None
        """Its job, if Slurm was queried and lists it."""
        self._queue = queue
        self._life: LifeTest | None = None
        self._status: RunStatus | None = None

    @property
    def is_watching(self) -> bool:
        """Whether a later check can give more."""
        return self._life is not None and self._life.is_watching

    def has_executor(self, status: RunStatus) -> bool | None:
        """Return whether an executor is running; None if that is still unknown."""
        if status.state.is_final:
            return False
        from hpctrain.launch.life import LifeTest

        self._status = status
        self._life = self._life or LifeTest(self.paths, self._job_is_alive)
        return self._life.look(status)

    def _job_is_alive(self, job_id: str) -> bool | None:
        from hpctrain.slurm.job import find_job

        assert self._status is not None
        if self._queue is None:
            self.job = find_job(job_id)
        else:
            self.job = _find_or_remember(self.paths, self._status, self._queue)
        return None if self.job is None else not self.job.is_final


def _view(look: _Look) -> RunView:
    paths = look.paths
    status = _read_status(paths)
    if status is None:
        nothing = RunStatus(name=paths.root.name, state=RunState.SUBMITTED, launcher="")
        return _with_next_step(
            paths,
            RunView(
                name=nothing.name, path=paths.root, state="prepared", live=False, status=nothing
            ),
        )
    live, job_state, job_reason = _look_for_executor(look, status)
    # It may have ended during the check of its executor.
    latest = read_status(paths) if live is False and not status.state.is_final else None
    status = latest or status
    if look.job is not None and look.job.is_pending:
        # Its executor was ended before it could write that the job is queued again.
        status = status.after(RunEvent.SUBMITTED)
    reports, reported_at, metrics = _last_report(paths, status)
    return _with_next_step(
        paths,
        RunView(
            name=paths.root.name,
            path=paths.root,
            state="lost" if live is False and not status.state.is_final else status.state.value,
            live=live,
            status=status,
            job_state=job_state,
            job_reason=job_reason,
            reports=reports,
            reported_at=reported_at,
            metrics=metrics,
            checkpoint=_newest_checkpoint(paths),
        ),
    )


def _read_status(paths: RunPaths) -> RunStatus | None:
    status = read_status(paths)
    if status is not None and status.state is not RunState.SUBMITTING:
        return status
    from hpctrain.launch.settle import read_settled_status

    try:
        return read_settled_status(paths)
    except LaunchError:
        return status


def _look_for_executor(
    look: _Look, status: RunStatus
) -> tuple[bool | None, str | None, str | None]:
    """Return whether it exists, and state and reason of its job."""
    if status.state is RunState.SUBMITTING:
        from hpctrain.launch.claim import is_claimed

        # Without a process that submits it, only Slurm has its state, and it did not answer.
        return is_claimed(look.paths) or None, None, None
    try:
        live = look.has_executor(status)
    except LaunchError:
        return None, None, None
    if (job := look.job) is None:
        return live, None, None
    # One that waits will have an executor.
    live = True if job.is_pending else live
    return live, job.state, job.reason if job.reason != "None" else None


def _find_or_remember(paths: RunPaths, status: RunStatus, queue: Queue) -> Job | None:
    """Return the job of a run, None if Slurm no longer lists it, now or at an earlier check."""
    assert status.job_id is not None
    is_silent = time.time() - status.updated_at > _LONG_SILENCE_S
    gone = {"event": "job-gone", "job_id": status.job_id}
    # A process that continues the run writes into the ledger first.
    if is_silent and gone.items() <= (read_events(paths) or [{}])[-1].items():
        return None
    job = queue.find_job(status.job_id)
    if job is None and is_silent:
        # The run may belong to a colleague, or the disk may be full.
        with suppress(OSError):
            RunRecord(paths).append("job-gone", job_id=status.job_id)
    return job


def _last_report(paths: RunPaths, status: RunStatus) -> tuple[int, float | None, Mapping[str, Any]]:
    """Return number, time and metrics of the last report; the status is some seconds old."""
    report = read_last_report(paths)
    if report is None or report["attempt"] != status.attempt:
        return status.reports, None, status.metrics
    if report["report"] < status.reports:
        # Earlier lines have disappeared.
        return status.reports, None, status.metrics
    return report["report"], report["time"], report["metrics"]


def _newest_checkpoint(paths: RunPaths) -> Path | None:
    # They appear and disappear by rename: each one with such a name is complete.
    try:
        names = [p.name for p in paths.checkpoints.iterdir() if p.name[0] != "." and p.is_dir()]
    except FileNotFoundError:
        return None
    if all(_CHECKPOINT_NAME.fullmatch(name) for name in names):
        return paths.checkpoints / max(names, key=int) if names else None
    # The user's own names, or renamed ones: the manifests distinguish them.
    manifests = CheckpointStore(paths.checkpoints).manifests()
    return paths.checkpoints / manifests[-1].name if manifests else None


def _with_next_step(paths: RunPaths, view: RunView) -> RunView:
    return replace(view, next_step=_next_step(paths, view))


def _next_step(paths: RunPaths, view: RunView) -> str | None:
    if view.state == RunState.FINISHED.value:
        return None
    if view.live is None:
        return _explain_doubt(paths, view.status)
    if view.live:
        return f"hpctrain attach {paths.root}"
    again = _command(paths)
    start = "begins it again" if view.checkpoint is None else f"resumes from {view.checkpoint.name}"
    return f"{again}   {start}"


def _explain_doubt(paths: RunPaths, status: RunStatus) -> str:
    if status.launcher == "slurm" or status.state is RunState.SUBMITTING:
        return (
            "Slurm did not answer, so it is unknown whether it still runs; ask again where squeue "
            "works"
        )
    return (
        f"its process is on {status.owner_host or 'an unknown host'} and wrote nothing for "
        f"{GLANCE_S:.0f} s, so it is unknown whether it still runs; ask there, or wait for it: "
        f"hpctrain wait {paths.root}"
    )


def _command(paths: RunPaths) -> str:
    """Return the command that began a run, as far as the run directory records it."""
    try:
        plan = read_plan(paths)
    except (OSError, DamagedFileError):
        return f"the script that began it ({paths.plan.name} is damaged)"
    argv = plan.get("argv") or ["the script"]
    where = plan.get("cwd")
    command = shlex.join(["python", *map(str, argv)])
    return command if where in (None, str(Path.cwd())) else f"cd {shlex.quote(where)} && {command}"


def format_age(since: float | None) -> str:
    """Return how long ago something was: ``8 s``, ``3 min``, ``5 h``, ``2 days``."""
    if not since:
        return ""
    seconds = max(0.0, time.time() - since)
    for unit, length in (("days", 172800.0), ("h", 7200.0), ("min", 120.0)):
        if seconds >= length:
            return f"{seconds / {'days': 86400, 'h': 3600, 'min': 60}[unit]:.0f} {unit}"
    return f"{seconds:.0f} s"
