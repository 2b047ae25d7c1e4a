"""`ReportCount`: a rank's side of the stop agreement."""

from __future__ import annotations

import threading

from hpctrain.errors import CheckpointError
from hpctrain.own_time import wait_for


class LeaveTraining(BaseException):
    """Unwinds a training function that has not returned although all ranks are to leave."""


class ReportCount:
    """How many reports a rank has begun, and after which of them it stops.

    Parameters
    ----------
    rank
        World rank.
    first
        Number of the report that the run resumed from; 0 at a fresh start.
    timeout_s
        Seconds to wait for the executor to send at which report to stop.
    """

    def __init__(self, *, rank: int, first: int, timeout_s: float) -> None:
        self._rank = rank
        self._timeout_s = timeout_s
        self._turn = threading.Condition()
        self._frozen = False
        # After which report should_stop() is true; after which those are unwound who never ask; and
        # after which the training function was notified.
        self._stop_at: int | None = None
        self._end_at: int | None = None
        self._notified_at: int | None = None
        self.begun = first
        """Number of the last report begun, counted over all attempts."""

    @property
    def was_notified(self) -> bool:
        """Whether the training function knows that it should return."""
        return self._notified_at is not None

    def ends_after(self, report: int) -> bool:
        """Return whether one who does not ask can make no report after `report`."""
        return self._end_at is not None and report >= self._end_at

    def begin(self) -> int:
        """Return the number of the report that begins now.

        Not collective.

        Raises
        ------
        CheckpointError
            If the executor does not send in time at which report to stop.
        LeaveTraining
            If the last report has been made.
        """
        with self._turn:
            # For the moment in which the executor asks all ranks how far they are.
            if not wait_for(self._turn, lambda: not self._frozen, self._timeout_s):
                raise CheckpointError(
                    f"rank {self._rank} waited {self._timeout_s:.0f} s for the executor to say "
                    f"at which report to stop. SyncConfig(sync_timeout=...) sets how long to wait."
                )
            # A function that has asked should_stop() may save in one more report.
            last = self._end_at if self._notified_at is None else self._notified_at + 1
            if last is not None and self.begun >= last:
                if self._notified_at is None:
                    self._notified_at = self.begun
                raise LeaveTraining
            self.begun += 1
            return self.begun

    def should_stop_after(self, report: int) -> bool:
        """Return whether this rank stops after `report`, and notify the training function of it."""
        first = self._stop_at if self._notified_at is None else self._notified_at
        stop = first is not None and report >= first
        if stop and self._notified_at is None:
            self._notified_at = report
        return stop

    # Called from the thread of the link.

    def freeze(self) -> int:
        """Promise to begin no further report before `stop_after`; return the last one begun."""
        with self._turn:
            self._frozen = True
            return self.begun

    def stop_after(self, report: int | None, *, unwind: bool = True) -> None:
        """Go on until `report`; see `Session.stop_after`."""
        with self._turn:
            # The first command stands: some ranks may have acted on it.
            if self._stop_at is None:
                self._stop_at = report
            if self._end_at is None and unwind:
                self._end_at = report
            self._frozen = False
            self._turn.notify_all()
