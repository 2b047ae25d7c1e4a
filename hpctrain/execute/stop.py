"""`StopAgreement`: let all ranks stop after the same report, without a barrier in ``report()``."""

from __future__ import annotations

import time
from collections.abc import Callable

from hpctrain.errors import RunStoppedError
from hpctrain.execute.recorder import Recorder
from hpctrain.execute.tracker import AttemptTracker

STOP_PATIENCE_S = 75.0
"""Seconds that ranks have to reach a report, save and return once a stop is wanted. Slurm's warning
comes 90 seconds before the time limit."""


class StopAgreement:
    """Asks the ranks how far they are (``freeze``), then says where to stop (``stop``).

    Until the second message no rank begins a further report, so the answer still holds when it
    arrives. One object an attempt.

    Parameters
    ----------
    recorder
        Says whether a stop is wanted.
    tracker
        Holds the answers.
    broadcast
        Sends a command to all ranks.
    """

    def __init__(
        self, recorder: Recorder, tracker: AttemptTracker, broadcast: Callable[..., None]
    ) -> None:
        self._recorder = recorder
        self._tracker = tracker
        self._broadcast = broadcast
        self._asked_at: float | None = None
        self._agreed = False

    def step(self) -> None:
        """Take the next step if there is one to take.

        Raises
        ------
        RunStoppedError
            If the ranks do not return although they were told to stop.
        """
        recorder = self._recorder
        if self._tracker.signals and recorder.wants_stop is None:
            recorder.wants_stop = f"its ranks got {self._tracker.signals[0]}"
        if recorder.wants_stop is None:
            return
        if self._asked_at is None:
            self._asked_at = time.monotonic()
            self._broadcast("freeze")
        if not self._agreed and self._tracker.stop_report is not None:
            self._agreed = True
            self._broadcast("stop", report=self._tracker.stop_report)
        if time.monotonic() - self._asked_at > STOP_PATIENCE_S:
            raise RunStoppedError(
                f"the run was to stop because {recorder.wants_stop}, but its ranks did not return "
                f"within {STOP_PATIENCE_S:.0f} s. They were ended; the run resumes from "
                f"{recorder.checkpoint_path() or 'its beginning'}. A training function that asks "
                f"should_stop() after each report() can save first."
            )
