"""`ReportCount`: a rank's side of the stop agreement."""

from __future__ import annotations

import threading
from collections.abc import Callable

from hpctrain import timeouts
from hpctrain.errors import CheckpointError
from hpctrain.log import log
from hpctrain.own_time import LOOK_INTERVAL_S, Deadline, wait_for


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
    beat
        Called often in a wait for a tuner: the rank does not hang.
    """

    def __init__(
        self,
        *,
        rank: int,
        first: int,
        timeout_s: float,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        self._rank = rank
        self._timeout_s = timeout_s
        self._beat = beat
        self._change = threading.Condition()
        self._frozen = False
        self._promised = False
        # Whether to a tuner, which decides on each report; and whether it did not answer in time.
        self._is_for_tuner = self._has_given_up = self._has_said = False
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
        with self._change:
            if self._promised:
                self._await_answer()
            # For the moment in which the executor asks all ranks how far they are.
            if self._frozen and not wait_for(
                self._change, lambda: not self._frozen, self._timeout_s
            ):
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
        with self._change:
            if report >= self.begun:
                self._await_answer()
        first = self._stop_at if self._notified_at is None else self._notified_at
        stop = first is not None and report >= first
        if stop and self._notified_at is None:
            self._notified_at = report
        return stop

    def promise(self, *, to_tuner: bool = False) -> None:
        """Begin no further report before the executor has seen the last one, which ends the run.

        Not collective. The promise is made before that report is sent.

        Parameters
        ----------
        to_tuner
            Whether a tuner decides if it ends the run. One that has not answered in time is waited
            for again once it has answered.
        """
        with self._change:
            if to_tuner and self._has_given_up:
                return
            self._promised = self._stop_at is None and self._end_at is None
            self._is_for_tuner = to_tuner

    def _await_answer(self) -> None:
        """Wait for the answer to what was promised; the lock is held."""
        if not self._promised:
            return
        if self._is_for_tuner:
            self._await_tuner()
            return
        timeout_s = min(timeouts.EXACT_STOP_S, self._timeout_s)
        if not wait_for(self._change, lambda: not self._promised, timeout_s):
            # The executor does not see it in this way.
            self._promised = False

    def _await_tuner(self) -> None:
        """Wait for a tuner to decide on the last report; the lock is held."""
        deadline = Deadline(timeouts.TUNER_DECISION_S)
        while self._promised:
            if deadline.is_over:
                self._promised, self._has_given_up = False, True
                self._say_given_up()
                return
            self._change.wait(min(deadline.left_s, LOOK_INTERVAL_S))
            self._beat()

    def _say_given_up(self) -> None:
        if not self._has_said and self._rank == 0:
            self._has_said = True
            log(
                f"note: report {self.begun} was not decided on within "
                f"{timeouts.describe(timeouts.TUNER_DECISION_S)}: its checkpoint is not committed "
                f"yet, or the tuner does not answer. The trial goes on, and its reports wait for "
                f"no decisions until the next one comes."
            )

    # Called from the thread of the link.

    def freeze(self) -> int:
        """Promise to begin no further report before `stop_after`; return the last one begun.

        Not collective. Ranks stop one report later: their functions may have asked after the last
        one already. Of one that meets the criterion they have not, and the one before is returned.
        """
        with self._change:
            self._frozen = True
            return self.begun - 1 if self._promised else self.begun

    def go_on_after(self, report: int) -> None:
        """Note that a tuner has decided on a report, and that the run goes on. Not collective."""
        with self._change:
            self._has_given_up = False
            # One that is frozen waits for where it stops.
            if report >= self.begun and not self._frozen:
                self._promised = False
                self._change.notify_all()

    def stop_after(self, report: int | None, *, unwind: bool = True) -> None:
        """Go on until `report`; see `Session.stop_after`."""
        with self._change:
            # The first command stands: some ranks may have acted on it.
            if self._stop_at is None:
                self._stop_at = report
            if self._end_at is None and unwind:
                self._end_at = report
            self._frozen = self._promised = False
            self._change.notify_all()
