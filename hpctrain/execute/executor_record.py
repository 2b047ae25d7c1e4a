"""`ExecutorRecord`: what the executor of a run writes into ``status.json`` and ``ledger.jsonl``."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

from hpctrain import environ, timeouts
from hpctrain.execute.fence import Fence
from hpctrain.execute.health import NodeHealth
from hpctrain.log import log
from hpctrain.rundir.announcement import announce, announcements
from hpctrain.rundir.directory import HeldDirectory
from hpctrain.rundir.files import retry
from hpctrain.rundir.history import (
    FailureKind,
    History,
    end_time,
    has_open_executor,
    read_history,
    read_met_criterion,
    read_validation_wait,
    unfinished_attempts,
)
from hpctrain.rundir.ledger import last_number, read_events
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.run_record import RunRecord
from hpctrain.rundir.states import RunEvent, RunState
from hpctrain.rundir.status import RunStatus, read_status

STATUS_INTERVAL_S = 2.0
# Ranks that start, a callback or Slurm's controller may take minutes, and an executor that writes
# nothing meanwhile is considered dead.
_LIFE_INTERVAL_S = 4.0
_WARNING_INTERVAL_S = 10.0


class ExecutorRecord:
    """Keeps the status and the ledger of a run, and writes them with a `RunRecord`.

    What a full disk does not take is kept in memory, and written once there is room. An executor
    whose run another one has taken over writes nothing.

    Parameters
    ----------
    paths
        The run directory.
    status
        State to start from.
    """

    keeps_files: ClassVar[bool] = True
    """Whether the directory also gets the return value, and what failed ranks sent."""

    def __init__(self, paths: RunPaths, status: RunStatus) -> None:
        self.paths = paths
        self.status = status
        """The status as it was last changed."""
        self.directory = HeldDirectory(paths)
        """The directory that the run has begun in."""
        self._fence = Fence(paths)
        self._previous = retry(lambda: read_status(paths), patience_s=timeouts.STORAGE_FAILOVER_S)
        self._written_at = 0.0
        self._writing = threading.Lock()
        # Not held while a disk is waited for: a change of the status for later does not wait.
        self._changing = threading.Lock()
        # Kept here too: with a full disk the ledger does not grow, and what is counted must.
        self._events = retry(lambda: read_events(paths), patience_s=timeouts.STORAGE_FAILOVER_S)
        self.status = status.with_changes(
            last_restart=next(reversed(announcements(self._events)), "")
        )
        self._unwritten: deque[dict[str, Any]] = deque()
        self._warn_at: dict[str, float] = {}

    @property
    def may_write(self) -> bool:
        """Whether the directory is where it was, and no other executor has taken the run over."""
        return self.directory.is_here and not self.is_superseded

    @property
    def is_superseded(self) -> bool:
        """Whether another executor has taken the run over."""
        return not self._fence.holds(self.directory.paths)

    def check(self) -> None:
        """Return if this executor may write into the run directory. Not collective.

        Raises
        ------
        RunStoppedError
            If the directory was removed, moved or replaced.
        SupersededError
            If another executor has taken the run over.
        """
        self.directory.check()
        self.check_fence()

    def check_fence(self) -> None:
        """Return if no other executor has taken the run over. Not collective.

        Raises
        ------
        SupersededError
            If one has.
        """
        self._fence.check(self.directory.paths)

    @property
    def history(self) -> History:
        """What has gone wrong so far, over all jobs of the run."""
        return read_history(self._events)

    @property
    def last_attempt(self) -> int:
        """Number of the last attempt that has begun, over all jobs of the run; 0 if none has."""
        return max(self.status.attempt, last_number(self._events))

    @property
    def most_reports(self) -> int:
        """Number of the last report that is known of an attempt, over all jobs of the run."""
        ended = (e for e in self._events if e["event"] == "attempt-ended")
        return max([self.status.reports, *(e.get("reports") or 0 for e in ended)])

    @property
    def attempt_seconds(self) -> float:
        """Seconds that attempts which have ended lasted, over all jobs of the run."""
        began = {e["attempt"]: e["time"] for e in self._events if e["event"] == "attempt-started"}
        ended = {e["attempt"]: end_time(e) for e in self._events if e["event"] == "attempt-ended"}
        return sum((max(0.0, ended[n] - began[n]) for n in began.keys() & ended.keys()), 0.0)

    @property
    def met_criterion(self) -> tuple[int, str] | None:
        """The report that met the stop criterion, and why, over all jobs of the run."""
        return read_met_criterion(self._events)

    @property
    def validation_wait_s(self) -> float:
        """Seconds for which earlier jobs waited for validations, once the training had ended."""
        return read_validation_wait(self._events)

    @property
    def begun_with(self) -> set[str]:
        """Names of the checkpoints with which attempts have begun, over all jobs of the run."""
        started = (e for e in self._events if e["event"] == "attempt-started")
        found = (e.get("resumed_from") for e in started)
        return {Path(path).name for path in found if path is not None}

    @property
    def is_status_old(self) -> bool:
        """Whether it is time to write the status again."""
        return time.monotonic() - self._written_at >= STATUS_INTERVAL_S

    def change(self, *, patience_s: float = 0.0, **changes: Any) -> None:
        """Change the status and write it, unless another executor has taken the run over.

        Parameters
        ----------
        patience_s
            Seconds for which it is tried to write it, as where a disk is full.
        **changes
            Fields of the status.
        """
        with self._writing:
            self.change_later(**changes)
            self._retry_status(patience_s)

    def advance(self, event: RunEvent, *, patience_s: float = 0.0, **changes: Any) -> None:
        """Change the state of the run by an event, and write it as `change` does.

        Parameters
        ----------
        event
            What happened; `hpctrain.rundir.states` has the state that follows.
        patience_s
            Seconds for which it is tried to write it.
        **changes
            Further fields of the status.
        """
        with self._writing:
            with self._changing:
                self.status = self.status.after(event, **changes)
            self._retry_status(patience_s)

    def _retry_status(self, patience_s: float) -> None:
        self._written_at = time.monotonic()
        try:
            retry(self._write_status, patience_s=patience_s)
        except OSError as error:
            self.warn_unwritten("status.json", error)

    @contextmanager
    def kept_alive(self) -> Iterator[None]:
        """Write the status now and then, in a thread, while its state is that of a run at work."""
        over = threading.Event()

        def show_life() -> None:
            while not over.wait(min(_LIFE_INTERVAL_S, STATUS_INTERVAL_S)):
                with self._writing, suppress(OSError):
                    # Another job's executor may write it once this one has handed the run over.
                    is_old = time.monotonic() - self._written_at >= _LIFE_INTERVAL_S
                    if is_old and self.status.state in (RunState.STARTING, RunState.RUNNING):
                        self._write_status()

        thread = threading.Thread(target=show_life, name="hpctrain-life", daemon=True)
        with suppress(RuntimeError):
            # Where there may be no more threads, the run goes on without.
            thread.start()
        try:
            yield
        finally:
            over.set()
            if thread.is_alive():
                thread.join()

    def _write_status(self) -> None:
        paths = self.directory.paths
        if self._fence.holds(paths):
            written = RunRecord(paths).write(self.status)
            # What was changed while it was written is in the next one.
            self.change_later(updated_at=written.updated_at, damage=written.damage)

    def change_later(self, **changes: Any) -> None:
        """Change the status; it is written with the next change."""
        with self._changing:
            self.status = self.status.with_changes(**changes)

    def note(self, event: str, **details: Any) -> None:
        """Append an event to the ledger, after those for which there was no room."""
        entry = {"event": event, "time": time.time(), **details}
        self._events.append(entry)
        if announced := announce(entry):
            self.change_later(last_restart=announced)
        self._unwritten.append(entry)
        self.write_events()

    def write_events(self) -> None:
        """Append events for which there was no room, if there are any, to the ledger."""
        try:
            while self._unwritten:
                paths = self.directory.paths
                if not self._fence.holds(paths):
                    return
                RunRecord(paths).append(**self._unwritten[0])
                self._unwritten.popleft()
        except OSError as error:
            self.warn_unwritten("ledger.jsonl", error)

    def warn_unwritten(self, what: str, error: OSError) -> None:
        """Log that something cannot be written, once in a while."""
        now = time.monotonic()
        if now < self._warn_at.get(what, 0.0):
            return
        self._warn_at[what] = now + _WARNING_INTERVAL_S
        # A full disk must not end a run whose ranks may never write to it; ranks that do raise.
        log(
            f"cannot write {what} in {self.paths.root}: {error.strerror}",
        )

    def begin(self) -> None:
        """Write down that an executor begins, and how the last one ended if it could not.

        From here on no executor that was there before may write.
        """
        self._fence.take(self.paths)
        if has_open_executor(self._events):
            last = self._previous
            self.note("executor-ended", until=time.time() if last is None else last.updated_at)
        self.note(
            "executor-started",
            job_id=self.status.job_id,
            restarts=environ.restart_count(),
            number=self._fence.number,
        )
        self.advance(RunEvent.STARTED)

    def hand_over(self, metrics: Mapping[str, Any]) -> None:
        """Write that this executor ends and the run goes on in another job, before it does.

        Parameters
        ----------
        metrics
            Rank 0's last; empty if this executor received none.

        Raises
        ------
        SupersededError
            If another executor has taken the run over: that one decides how the run goes on.
        """
        self.check()
        self.note("executor-ended")
        self.advance(RunEvent.SUBMITTED, metrics=metrics or self.status.metrics)

    def name_successor(self, job_id: str) -> None:
        """Write down which job goes on, unless it has begun already and written that itself."""
        present = read_status(self.paths)
        if present is not None and present.job_id == self.status.job_id:
            self.change(job_id=job_id)

    def note_health(self, health: NodeHealth) -> None:
        """Write down what is wrong with nodes, and log what does not end the run."""
        of = {"job_id": self.status.job_id, "attempt": self.status.attempt}
        for node, reason in health.bad.items():
            self.note("node-bad", node=node, reason=reason, **of)
        for node, reason in health.doubtful.items():
            self.note("node-doubtful", node=node, reason=reason, **of)
            log(f"{node} is used, but {reason}.")

    def close_dead_attempts(self, saved: int) -> tuple[str, FailureKind] | None:
        """Write down how attempts ended whose executor died silently.

        Parameters
        ----------
        saved
            Report of the newest checkpoint.

        Returns
        -------
        tuple or None
            Why the last of them ended, and which kind of failure that is; None if there is none
            that counts against a budget.
        """
        dead = None
        for started in unfinished_attempts(self._events):
            cause, kind = dead = self._explain_dead_attempt(started)
            self.note(
                "attempt-ended",
                attempt=started["attempt"],
                until=self._last_sign_of(started),
                cause=cause,
                kind=kind,
                reports=saved,
                saved=saved,
                nodes=self._nodes_of(started["attempt"]),
            )
        return dead if self.history.failures else None

    def _last_sign_of(self, started: Mapping[str, Any]) -> float:
        """Return when an attempt whose executor died silently was last known to run."""
        later = self._events[self._events.index(dict(started)) + 1 :]
        ends = (end_time(event) for event in later if event["event"] == "executor-ended")
        return max(float(started["time"]), next(ends, time.time()))

    def _nodes_of(self, attempt: int) -> list[str]:
        """Return the nodes of an attempt whose executor died, as far as it wrote them down."""
        last = self._previous
        return list(last.nodes) if last is not None and last.attempt == attempt else []

    def _explain_dead_attempt(self, started: Mapping[str, Any]) -> tuple[str, FailureKind]:
        job_id = started.get("job_id")
        this_start = (self.status.job_id, environ.restart_count())
        if job_id is None or (job_id, started.get("restarts")) == this_start:
            return f"the executor on {started.get('host', '?')} died", FailureKind.START
        return f"job {job_id} was taken away without a warning", FailureKind.PREEMPTION


class UnwrittenRecord(ExecutorRecord):
    """The status and the ledger of an attempt without a run: in memory only.

    What shows and stops runs finds none in its directory, and no disk can fail it.
    """

    keeps_files = False

    def begin(self) -> None:
        """Record that the attempt begins."""
        self.advance(RunEvent.STARTED)

    @property
    def is_superseded(self) -> bool:
        """Whether another executor has taken it over: none can."""
        return False

    def check(self) -> None:
        """Do nothing: no other executor can have taken it over."""

    def check_fence(self) -> None:
        """Do nothing, as in `check`."""

    def note(self, event: str, **details: Any) -> None:
        """Record an event."""
        self._events.append({"event": event, "time": time.time(), **details})

    def _write_status(self) -> None:
        """Write nothing."""
