"""`StopRule`: when ``RunConfig(stop=...)`` is met."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from hpctrain.config import Stop
from hpctrain.metric_names import COUNTED, find_number


class StopRule:
    """Applies a stop criterion to one report after the other.

    Parameters
    ----------
    stop
        The criterion; None is never met.
    """

    def __init__(self, stop: Stop | None) -> None:
        self._stop = stop
        self._first_report = 0
        self._seconds_before = 0.0
        self._began_at = time.monotonic()

    def begin_attempt(self, *, first_report: int, seconds_before: float) -> None:
        """Begin to count anew what Ray Train counts since the last restore.

        Not collective.

        Parameters
        ----------
        first_report
            Number of the report that the attempt resumes from.
        seconds_before
            Seconds that earlier attempts have lasted, over all jobs of the run.
        """
        self._first_report = first_report
        self._seconds_before = seconds_before
        self._began_at = time.monotonic()

    def explain(self, report: int, metrics: Mapping[str, Any]) -> str | None:
        """Return why a report meets the criterion; None if it does not. Not collective."""
        if self._stop is None:
            return None
        counted = self._count(report)
        if not isinstance(self._stop, Mapping):
            is_met = self._stop(report, {**counted, **metrics})
            return "the stop function returned true" if is_met else None
        for name, goal in self._stop.items():
            value = find_number(metrics, name)
            value = counted.get(name) if value is None else value
            # Ray Train's rule: a stop criterion is met when the metric is at least the value.
            if value is not None and value >= goal:
                return f"{name}={value} reached {goal}"
        return None

    def _count(self, report: int) -> dict[str, float]:
        seconds = round(time.monotonic() - self._began_at, 3)
        values = (report, report - self._first_report, self._seconds_before + seconds, seconds)
        return dict(zip(COUNTED, values, strict=True))
