"""`MedianStoppingRule`: stop what is worse than the median of the others' averages."""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from hpctrain.checks import plain_number
from hpctrain.errors import ConfigError
from hpctrain.tune.schedulers.scheduler import Decision, TrialScheduler, positive, whole


class MedianStoppingRule(TrialScheduler):
    """The median stopping rule (Golovin et al., 2017).

    A trial is stopped if its best value so far is worse than the median of the averages that the
    other trials had at this time.

    Parameters
    ----------
    time_attr, metric, mode
        As of `TrialScheduler`.
    grace_period
        No trial is stopped before it, and averages begin there.
    min_samples_required
        How many other trials it takes.
    min_time_slice
        Ray Tune's argument: how long a trial runs before it yields its slot as long as it cannot
        be compared. It never yields it here.
    hard_stop
        Ray Tune's argument: trials are stopped, and none is only paused.

    Raises
    ------
    ConfigError
        If a number is out of range, or `hard_stop` is false.
    """

    def __init__(
        self,
        time_attr: str = "time_total_s",
        metric: str | None = None,
        mode: str | None = None,
        grace_period: float = 60.0,
        min_samples_required: int = 3,
        min_time_slice: float = 0,
        hard_stop: bool = True,
    ) -> None:
        super().__init__(time_attr=time_attr, metric=metric, mode=mode)
        name = type(self).__name__
        if grace_period != 0:
            grace_period = positive(f"{name}(grace_period=...)", grace_period)
        if min_time_slice != 0:
            positive(f"{name}(min_time_slice=...)", min_time_slice)
        if not hard_stop:
            raise ConfigError(
                f"{name}(hard_stop=False): a trial that is worse than the median is stopped, and "
                f"none is paused for others. Leave hard_stop out."
            )
        self._grace_period = plain_number(grace_period)
        required = f"{name}(min_samples_required=...)"
        self._min_samples = whole(required, min_samples_required, at_least=1)
        self._curves: dict[str, _Curve] = {}

    def set_search_properties(self, metric: str | None, mode: str | None) -> None:
        """Take the metric and the mode of the TuneConfig. Not collective.

        Raises
        ------
        ConfigError
            If one of them is missing, or given twice.
        """
        super().set_search_properties(metric, mode)
        # A pickled one of an older version lacks it.
        self._curves = {}

    def on_result(self, trial_id: str, metrics: Mapping[str, Any]) -> Decision:
        """Return whether a trial is as good as the median of the others. Not collective."""
        score = self._score(metrics)
        if score is None:
            return self.CONTINUE
        when, _ = score
        own = self._note(trial_id, *score)
        if when < self._grace_period:
            return self.CONTINUE
        averages = [
            average
            for curve in self._curves.values()
            if curve is not own and curve.last >= when
            if (average := curve.average(when)) is not None
        ]
        if len(averages) < self._min_samples:
            return self.CONTINUE
        # A first value that is NaN stays the best, and is equal to nothing: the trial is stopped.
        is_worse = max(statistics.median(averages), own.best) != own.best
        return self.STOP if is_worse else self.CONTINUE

    def on_complete(self, trial_id: str, metrics: Mapping[str, Any]) -> None:
        """Let the last report of a trial count once more, as in Ray Tune. Not collective."""
        score = self._score(metrics)
        if score is not None:
            self._note(trial_id, *score)

    def _note(self, trial_id: str, when: float, value: float) -> _Curve:
        curve = self._curves.setdefault(trial_id, _Curve())
        curve.take(when, value, is_averaged=self._grace_period <= when)
        return curve


class _Curve:
    """The values of a trial, whose average until any time is known without adding them up again."""

    def __init__(self) -> None:
        self.last = -math.inf
        """Time of the last value."""
        self.best = math.nan
        self._is_empty = True
        self._times: list[float] = []
        self._values: list[float] = []
        self._sums: list[float] = []
        """Of the values until each of the first times, as far as averages were asked for."""
        self._total = Fraction()
        self._not_finite_at = math.inf

    def take(self, when: float, value: float, *, is_averaged: bool) -> None:
        """Note a value."""
        self.last = when
        self.best = value if self._is_empty else max(self.best, value)
        self._is_empty = False
        if not is_averaged:
            return
        if not math.isfinite(value):
            self._not_finite_at = min(self._not_finite_at, when)
            return
        index = bisect_right(self._times, when)
        self._times.insert(index, when)
        self._values.insert(index, value)
        if index < len(self._sums):
            # It has begun anew, and reports the same times again.
            self._sums, self._total = [], Fraction()

    def average(self, until: float) -> float | None:
        """Return the average of the values up to a time; None if there are none, or not finite."""
        count = bisect_right(self._times, until)
        if not count or until >= self._not_finite_at:
            return None
        for value in self._values[len(self._sums) : count]:
            self._total += Fraction(value)
            self._sums.append(_rounded(self._total))
        total = self._sums[count - 1]
        return total / count if math.isfinite(total) else None


def _rounded(total: Fraction) -> float:
    try:
        return float(total)
    except OverflowError:
        return math.inf
