"""`LiveWatch`: looks at a run again and again, gently to its filesystem and to Slurm."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from hpctrain.errors import LaunchError
from hpctrain.launch.claim import is_claimed
from hpctrain.launch.life import LifeTest
from hpctrain.launch.liveness import QuestionBudget
from hpctrain.rundir.live_reader import LiveReader, RunFiles, make_view
from hpctrain.rundir.live_view import LiveView
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.states import RunEvent, RunState
from hpctrain.rundir.status import RunStatus
from hpctrain.slurm.job import Queue
from hpctrain.slurm.output import Job
from hpctrain.slurm.waiting import explain_wait

INTERVAL_S = 2.0
"""Seconds between two looks: executors write the status as often."""
_ANSWER_S = 30.0
_FIND_INTERVAL_S = 30.0
# Executors write their status every six seconds at least.
_SILENCE_S = 15.0


class _NotAskedError(LaunchError):
    """Slurm is not asked about a job yet, to spare its controller."""


class JobBoard:
    """What Slurm says of the jobs of all runs that are looked at, by one question for all of them.

    It asks twice in the first minute, and once a minute after it: who looks at a page for hours
    costs the controller no more than who follows one run.

    Parameters
    ----------
    clock
        Seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._budget = QuestionBudget(clock())
        self._uids: set[int] = set()
        self._queue: Queue | None = None
        self._asked_at = 0.0
        self._asked_about: set[str] = set()
        self._wanted: set[str] = set()

    def register(self, job_id: str, uid: int) -> None:
        """Let the next question be about a job, too. Not collective.

        Parameters
        ----------
        uid
            Its user.
        """
        self._wanted.add(job_id)
        self._uids.add(uid)

    def find(self, job_id: str, uid: int) -> Job | None:
        """Return what Slurm's controller said of a job, or None if it has forgotten it.

        Not collective.

        Parameters
        ----------
        uid
            Its user.

        Raises
        ------
        LaunchError
            If that is not known yet, or the controller did not answer.
        """
        self.register(job_id, uid)
        now = self._clock()
        # One that was submitted since the question is not in the answer.
        is_new = job_id not in self._asked_about
        is_due = self._queue is None or is_new or now - self._asked_at >= _ANSWER_S
        if is_due and self._budget.take(now):
            self._queue = Queue(self._uids)
            self._asked_at, self._asked_about = now, set(self._wanted)
            is_new = False
        if self._queue is None or is_new:
            raise _NotAskedError("Slurm was asked a moment ago.", transient=True)
        return self._queue.find_job(job_id)


class LiveWatch:
    """Looks at one run.

    Parameters
    ----------
    paths
        The run directory.
    board
        What Slurm says; runs of one page share it.
    """

    def __init__(self, paths: RunPaths, board: JobBoard) -> None:
        self.paths = paths
        self._board = board
        self._reader = LiveReader(paths)
        self._life = LifeTest(paths, self._job_is_alive)
        self._job: Job | None = None
        self._unanswered = ""
        self._mark: object = None
        self._changed_at: float | None = None

    def announce(self) -> None:
        """Let the board know the job before it asks for that of another run. Not collective."""
        status = self._reader.read().status
        if status is not None and status.job_id is not None and not status.state.is_final:
            with suppress(OSError):
                self._board.register(status.job_id, os.stat(self.paths.root).st_uid)

    def look(self) -> LiveView:
        """Return the run as it is now. Not collective. Never raises for what is in its files."""
        files, now = self._reader.read(), time.time()
        self._job = None
        state, live = self._find_state(files)
        if state == "lost":
            # It may have ended during the check of its executor.
            files = self._reader.read()
            if files.status is not None and files.status.state.is_final:
                state = files.status.state.value
        if files.status is not None and self._job is not None and self._job.is_pending:
            # Its executor was ended before it could write that the job is queued again.
            queued = files.status.after(RunEvent.SUBMITTED)
            files, state, live = replace(files, status=queued), queued.state.value, True
        return make_view(
            files,
            self.paths,
            state=state,
            live=live,
            now=now,
            waits=self._explain_wait(),
            unanswered=self._unanswered if live is None else "",
        )

    def _explain_wait(self) -> str:
        return "" if self._job is None else explain_wait(self._job, run=str(self.paths.root))

    def _find_state(self, files: RunFiles) -> tuple[str, bool | None]:
        status = files.status
        if status is None:
            if files.problem:
                return "unread", None
            return "prepared", None if is_claimed(self.paths) else False
        if status.state.is_final:
            return status.state.value, False
        if status.state is RunState.SUBMITTING:
            return status.state.value, is_claimed(self.paths) or None
        live = self._has_executor(status)
        return ("lost" if live is False else status.state.value), live

    def _has_executor(self, status: RunStatus) -> bool | None:
        now = time.monotonic()
        if status.mark != self._mark:
            # Only what changes under our eyes: of the first look it is not known how old it is.
            self._changed_at = None if self._mark is None else now
            self._mark = status.mark
        is_fresh = self._changed_at is not None and now - self._changed_at < _SILENCE_S
        if is_fresh and status.state is not RunState.SUBMITTED:
            return True
        try:
            return self._life.look(status)
        except LaunchError:
            return None

    def _job_is_alive(self, job_id: str) -> bool | None:
        try:
            uid = os.stat(self.paths.root).st_uid
        except OSError as error:
            raise LaunchError(str(error), transient=True) from error
        try:
            self._job = self._board.find(job_id, uid)
        except LaunchError as error:
            # Without a question, what the last one gave holds.
            if not isinstance(error, _NotAskedError):
                self._unanswered = (
                    f"Slurm did not answer, so it is unknown whether job {job_id} still waits or "
                    f"runs: {error}"
                )
            raise
        self._unanswered = ""
        return None if self._job is None else not self._job.is_final


class RunsWatch:
    """Looks at several runs, with one question to Slurm for all of them.

    Parameters
    ----------
    find
        Returns the directories of the runs; called again every half minute.
    """

    def __init__(self, find: Callable[[], Sequence[RunPaths]]) -> None:
        self._find = find
        self._board = JobBoard()
        self._watches: dict[Path, LiveWatch] = {}
        self._ended: dict[Path, LiveView] = {}
        self._found_at: float | None = None

    def look(self) -> list[LiveView]:
        """Return the runs as they are now: those that are at work first, then the newest first.

        Not collective. A run that has ended is looked at again every half minute: it may have been
        resumed.
        """
        now = time.monotonic()
        if self._found_at is None or now - self._found_at >= _FIND_INTERVAL_S:
            self._found_at = now
            found = {paths.root: paths for paths in self._find()}
            self._watches = {
                root: self._watches.get(root) or LiveWatch(paths, self._board)
                for root, paths in found.items()
            }
            self._ended = {}
        due = [watch for root, watch in self._watches.items() if root not in self._ended]
        for watch in due:
            watch.announce()
        views = {watch.paths.root: watch.look() for watch in due}
        self._ended |= {root: view for root, view in views.items() if view.is_over}
        views |= self._ended
        # The order of `find` is that of their beginning.
        return sorted((views[root] for root in self._watches), key=_liveliness)


def _liveliness(view: LiveView) -> int:
    if view.is_over:
        return 3
    if view.live is None:
        return 2
    return 0 if view.is_at_work else 1
