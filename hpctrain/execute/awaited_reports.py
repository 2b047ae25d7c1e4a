"""`AwaitedReports`: lets ranks go on after a report that awaits the decision of a tuner."""

from __future__ import annotations

from collections.abc import Callable

from hpctrain.execute.tuner_socket import ExecutorEnd


class AwaitedReports:
    """What ranks of one attempt wait for after a report, if they are those of a trial."""

    def __init__(self) -> None:
        self._attempt = 0
        self._sent = self._answered = 0

    def begin_attempt(self, attempt: int) -> None:
        """Forget the ranks of the last attempt. Not collective."""
        self._attempt, self._sent, self._answered = attempt, 0, 0

    def step(
        self,
        tuner: ExecutorEnd,
        broadcast: Callable[..., None],
        *,
        awaited: int,
        is_stopping: bool = False,
    ) -> None:
        """Send the tuner the number of a report, and ranks that they go on. Not collective.

        Without a tuner that decides they go on at once.

        Parameters
        ----------
        tuner
            What it has sent was taken in.
        broadcast
            Sends a command to all ranks.
        awaited
            Number of the last report that was recorded and that ranks wait after; 0 if none is.
        is_stopping
            Whether the run is to stop: the agreement on where it does answers the ranks.
        """
        if awaited <= self._answered:
            return
        if tuner.decides and self._sent < awaited and tuner.send_reported((self._attempt, awaited)):
            self._sent = awaited
        decided = min(tuner.decided_on(self._attempt), awaited) if tuner.decides else awaited
        if decided > self._answered and not is_stopping:
            self._answered = decided
            broadcast("go-on", report=decided)
