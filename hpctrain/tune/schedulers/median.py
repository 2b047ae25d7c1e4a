"""`MedianStoppingRule`: stop what is worse than the median of the others' averages."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
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
        self._seen: dict[str, list[tuple[float, float]]] = {}

    def on_result(self, trial_id: str, metrics: Mapping[str, Any]) -> Decision:
        """Return whether a trial is as good as the median of the others. Not collective."""
        score = self._score(metrics)
        if score is None:
            return self.CONTINUE
        when, _ = score
        own = self._seen.setdefault(trial_id, [])
        own.append(score)
        if when < self._grace_period:
            return self.CONTINUE
        averages = [
            average
            for other, seen in self._seen.items()
            if other != trial_id and seen[-1][0] >= when
            if (average := self._average(seen, when)) is not None
        ]
        if len(averages) < self._min_samples:
            return self.CONTINUE
        best = max(value for _, value in own)
        # Of a first value that is NaN max() makes NaN, which is equal to nothing: it is stopped.
        return self.STOP if max(statistics.median(averages), best) != best else self.CONTINUE

    def on_complete(self, trial_id: str, metrics: Mapping[str, Any]) -> None:
        """Let the last report of a trial count once more, as in Ray Tune. Not collective."""
        score = self._score(metrics)
        if score is not None:
            self._seen.setdefault(trial_id, []).append(score)

    def _average(self, seen: list[tuple[float, float]], until: float) -> float | None:
        values = [value for when, value in seen if self._grace_period <= when <= until]
        if not values or not all(map(math.isfinite, values)):
            return None
        return math.fsum(values) / len(values)
