"""`Commits`: what a rank knows of the commits of checkpoints, and its waits for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpctrain import timeouts
from hpctrain.errors import CheckpointError
from hpctrain.own_time import wait_for

if TYPE_CHECKING:
    from hpctrain.worker.upload import Upload

MAX_IN_FLIGHT = 2
"""Checkpoints of one rank that may be under way in the background."""
# A rank knows of its own part alone.
_UNDER_WAY = (
    "a rank has not made this report or still writes its part of the checkpoint, or the executor "
    "still commits it"
)
_HOW_LONG = "SyncConfig(sync_timeout=...) sets how long to wait"


@dataclass(frozen=True)
class CommitOutcome:
    """What became of a checkpoint."""

    path: str | None
    error: str | None


@dataclass
class _Flight:
    """A part of this rank whose checkpoint is not decided on yet."""

    upload: Upload
    since: float
    staged: bool = False


class Commits:
    """Which checkpoints of a rank are under way, and what became of the others.

    Parameters
    ----------
    rank
        World rank.
    newest
        Report and path of the checkpoint that the run resumed from.
    timeout_s
        Seconds to wait for a commit.
    """

    def __init__(self, *, rank: int, newest: tuple[int, str | None], timeout_s: float) -> None:
        self._rank = rank
        self._timeout_s = timeout_s
        self._change = threading.Condition()
        self._flights: dict[int, _Flight] = {}
        self._outcomes: dict[int, CommitOutcome] = {}
        self._found: tuple[int, Sequence[Any]] | None = None
        self.newest = newest
        """Report and path of the newest checkpoint that this rank knows to be complete."""
        self.failure: BaseException | None = None
        """What went wrong first in the background."""

    def expect(self, report: int, upload: Upload) -> None:
        """Record that this rank's part of a report's checkpoint is under way."""
        self._flights[report] = _Flight(upload, time.monotonic())

    def staged(self, report: int) -> None:
        """Record that this rank's part, which is under way, is on disk."""
        flight = self._flights.get(report)
        if flight is not None:
            flight.staged = True

    def fail(self, error: BaseException, report: int | None = None) -> None:
        """Record what went wrong in the background.

        Parameters
        ----------
        error
            To be raised, once.
        report
            Whose checkpoint this rank waits for no more.
        """
        with self._change:
            self._flights.pop(report or 0, None)
            self.failure = self.failure or error
            self._change.notify_all()

    def wait_for(self, report: int) -> None:
        """Wait until a checkpoint is committed.

        Not collective, but it is only committed once every rank has made its report.

        Raises
        ------
        CheckpointError
            If it could not be committed, or was not in time.
        """
        with self._change:
            if not wait_for(self._change, lambda: report in self._outcomes, self._timeout_s):
                # Its outcome is not needed any more.
                self._flights.pop(report, None)
                raise CheckpointError(
                    f"rank {self._rank} waited {timeouts.describe(self._timeout_s)} in report "
                    f"{report} for its checkpoint: {_UNDER_WAY}. {_HOW_LONG}."
                )
            outcome = self._outcomes.pop(report)
        if outcome.path is None:
            raise _not_committed(report, outcome)

    def wait_for_all(self) -> bool:
        """Wait until none is under way; return whether that is so, and nothing went wrong."""
        with self._change:
            wait_for(
                self._change,
                lambda: not self._flights or self.failure is not None,
                self._timeout_s,
            )
        return self.failure is None and not self._flights

    def wait_for_newer(self, known: tuple[int, str | None]) -> bool:
        """Wait for a newer checkpoint than one that is deleted; return whether there is one."""
        with self._change:
            return wait_for(self._change, lambda: self.newest != known, timeouts.NEWER_CHECKPOINT_S)

    def wait_for_room(self) -> None:
        """Wait until one more may be under way.

        Raises
        ------
        CheckpointError
            If there is no room in time.
        """
        with self._change:
            if wait_for(self._change, lambda: len(self._flights) < MAX_IN_FLIGHT, self._timeout_s):
                return
        self.look()

    def look(self, *, finished: bool = False) -> None:
        """Raise, once, what went wrong in the background; or what takes too long."""
        if not self._flights and self.failure is None:
            return
        with self._change:
            failure, self.failure = self.failure, None
            if failure is not None:
                raise failure
            oldest = next(iter(self._flights.items()), None)
        if oldest is None:
            return
        report, flight = oldest
        waited_s = time.monotonic() - flight.since
        if not finished and waited_s > self._timeout_s:
            # All of that time the whole job may have stood still: one more moment, in which the
            # thread of the link is received.
            moment_s = min(timeouts.LATE_COMMIT_S, self._timeout_s)
            with self._change:
                if wait_for(self._change, lambda: report not in self._flights, moment_s):
                    return
        if finished or waited_s > self._timeout_s:
            why = _UNDER_WAY if flight.staged else "it is still copied"
            raise CheckpointError(
                f"rank {self._rank}: the checkpoint of report {report} is not committed after "
                f"{timeouts.describe(waited_s)}: {why}. {_HOW_LONG}."
            )

    def list_all(
        self, report: int, *, ask: Callable[[int], None], timeout_s: float | None
    ) -> Sequence[Any]:
        """Return path and metrics of the run's checkpoints, those up to `report` decided on.

        Not collective.

        Raises
        ------
        CheckpointError
            If the executor does not answer in time.
        """
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        self.look()
        with self._change:
            self._found = None
        ask(report)

        def is_answered() -> bool:
            return self.failure is not None or (self._found or (-1,))[0] >= report

        with self._change:
            if not wait_for(self._change, is_answered, timeout_s):
                raise CheckpointError(
                    f"rank {self._rank} waited {timeouts.describe(timeout_s)} for the checkpoints "
                    f"up to report {report}: {_UNDER_WAY}. {_HOW_LONG}, for this call "
                    f"get_all_reported_checkpoints(timeout_s=...)."
                )
            found = self._found
        self.look()
        assert found is not None
        return found[1]

    # Called from the thread of the link.

    def decide(self, report: int, outcome: CommitOutcome) -> Upload | None:
        """Record what became of a checkpoint; return what was uploaded in the background.

        Not collective.
        """
        with self._change:
            if outcome.path is not None and report > self.newest[0]:
                self.newest = (report, outcome.path)
            flight = self._flights.pop(report, None)
            if flight is not None and not flight.upload.is_async:
                self._outcomes[report] = outcome
            elif flight is not None and outcome.path is None:
                self.failure = self.failure or _not_committed(report, outcome)
            self._change.notify_all()
        return flight.upload if flight is not None and flight.upload.is_async else None

    def receive_all(self, report: int, found: Sequence[Any]) -> None:
        """Record the checkpoints that there are, all up to `report` decided on."""
        with self._change:
            self._found = (report, found)
            self._change.notify_all()


def _not_committed(report: int, outcome: CommitOutcome) -> CheckpointError:
    return CheckpointError(f"the checkpoint of report {report} was not committed: {outcome.error}")
