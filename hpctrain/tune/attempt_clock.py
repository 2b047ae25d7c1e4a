"""`AttemptClock`: the seconds that a run has been at work."""

from __future__ import annotations

from dataclasses import dataclass, field

from hpctrain.rundir.history import end_time
from hpctrain.rundir.ledger import read_events
from hpctrain.rundir.paths import RunPaths


@dataclass(kw_only=True)
class AttemptClock:
    """Counts the seconds of the attempts of a run, without those between them."""

    paths: RunPaths
    _spans: dict[int, tuple[float, float | None]] = field(default_factory=dict)

    def seconds_until(self, now: float, *, attempt: int, after: int = 0) -> float:
        """Return the seconds of all attempts up to a time in one of them. Not collective.

        Parameters
        ----------
        after
            Attempts up to this one do not count.
        """
        if attempt not in self._spans:
            self._read()
        begun, _ = self._spans.get(attempt, (now, None))
        earlier = (
            max(0.0, end - start)
            for number, (start, end) in self._spans.items()
            if after < number < attempt and end is not None
        )
        return sum(earlier) + max(0.0, now - begun)

    def _read(self) -> None:
        for event in read_events(self.paths):
            number = event.get("attempt")
            if event["event"] == "attempt-started" and number is not None:
                self._spans[number] = event["time"], None
            elif event["event"] == "attempt-ended" and number in self._spans:
                start, _ = self._spans[number]
                self._spans[number] = start, end_time(event)
