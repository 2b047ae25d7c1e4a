"""`TrialExecutors`: the sockets to the executors of trials that a tuner has begun."""

from __future__ import annotations

from hpctrain.execute.tuner_socket import Moment, TunerEnd, await_news


class TrialExecutors:
    """Sockets to executors of this host, by the name of their trial.

    Those of another host, and those that an earlier tuner has begun, are not among them: what
    would be sent to them is left out.
    """

    def __init__(self) -> None:
        self._ends: dict[str, TunerEnd] = {}
        self._with_news: set[str] = set()

    def begin(self, trial_id: str) -> TunerEnd:
        """Return what gets the socket to a new executor of a trial. Not collective."""
        self.let_go(trial_id)
        self._ends[trial_id] = TunerEnd()
        return self._ends[trial_id]

    def let_go(self, trial_id: str) -> None:
        """Close the socket to the executor of a trial, if there is one. Not collective."""
        if (end := self._ends.pop(trial_id, None)) is not None:
            end.close()

    def close(self) -> None:
        """Close all sockets. Not collective. The executors go on."""
        for trial_id in [*self._ends]:
            self.let_go(trial_id)

    def wait(self, timeout_s: float) -> None:
        """Wait until one of them has sent something or ends, or the time is over.

        Not collective.
        """
        found = await_news(self._ends.values(), timeout_s)
        for trial_id in [name for name, end in self._ends.items() if end in found]:
            self._with_news.add(trial_id)
            self._ends[trial_id].receive()
            if not self._ends[trial_id].is_open:
                del self._ends[trial_id]

    def take_news(self, trial_id: str) -> bool:
        """Return whether that of a trial has sent something since the last call. Not collective."""
        has_news = trial_id in self._with_news
        self._with_news.discard(trial_id)
        return has_news

    def reported_by(self, trial_id: str) -> Moment | None:
        """Return up to which report decisions on a trial are due; None without a socket.

        Not collective.
        """
        end = self._ends.get(trial_id)
        return None if end is None or not end.is_open else end.reported

    def decide(self, trial_id: str, moment: Moment) -> None:
        """Send that a trial goes on after a report. Not collective."""
        if (end := self._ends.get(trial_id)) is not None:
            end.decide(moment)

    def notify_of_stop(self, trial_id: str) -> None:
        """Send that there is a stop request for a trial. Not collective."""
        if (end := self._ends.get(trial_id)) is not None:
            end.notify_of_stop()
