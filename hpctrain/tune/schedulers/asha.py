"""`ASHAScheduler`: successive halving, without waiting for trials that are slow."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping
from typing import Any

from hpctrain.checks import shown
from hpctrain.errors import ConfigError
from hpctrain.tune.schedulers.scheduler import Decision, TrialScheduler, growing, positive, whole

# Each takes memory, and is looked at when a trial reports.
_MOST_MILESTONES = 10_000


class AsyncHyperBandScheduler(TrialScheduler):
    """Asynchronous successive halving (Li et al., 2018).

    At the milestones `grace_period`, ``grace_period * reduction_factor``, ... a trial goes on if it
    is among the best ``1 / reduction_factor`` of those that have reached the milestone before.

    Parameters
    ----------
    time_attr, metric, mode
        As of `TrialScheduler`.
    max_t
        A trial that reaches it is stopped, unless `stop_last_trials` is false.
    grace_period
        No trial is stopped before it.
    reduction_factor
        Each milestone lets one in so many trials go on.
    brackets
        Each further one has its first milestone one step later; trials are spread over them at
        random, fewer on those with fewer milestones.
    stop_last_trials
        Whether trials end at `max_t`.
    seed
        Seed for the choice of brackets.

    Raises
    ------
    ConfigError
        If a number is out of range.
    """

    def __init__(
        self,
        time_attr: str = "training_iteration",
        metric: str | None = None,
        mode: str | None = None,
        max_t: float = 100,
        grace_period: float = 1,
        reduction_factor: float = 4,
        brackets: int = 1,
        stop_last_trials: bool = True,
        *,
        seed: int = 0,
    ) -> None:
        super().__init__(time_attr=time_attr, metric=metric, mode=mode)
        name = type(self).__name__
        max_t = positive(f"{name}(max_t=...)", max_t)
        grace_period = positive(f"{name}(grace_period=...)", grace_period)
        reduction_factor = growing(name, reduction_factor)
        brackets = whole(f"{name}(brackets=...)", brackets, at_least=1)
        seed = whole(f"{name}(seed=...)", seed, at_least=0)
        if grace_period > max_t:
            raise ConfigError(
                f"{name}(grace_period={shown(grace_period)}, max_t={shown(max_t)}): no trial would "
                f"reach the first milestone. Make grace_period smaller, or max_t larger."
            )
        if math.log(max_t) - math.log(grace_period) > _MOST_MILESTONES * math.log(reduction_factor):
            raise ConfigError(
                f"{name}(reduction_factor={shown(reduction_factor)}, max_t={shown(max_t)}): there "
                f"would be more than {_MOST_MILESTONES} milestones. Use a larger reduction_factor."
            )
        self._max_t = max_t
        self._stops_last = stop_last_trials
        self._brackets = [
            Bracket(
                milestones(grace_period, max_t, reduction_factor, skipped=skipped),
                reduction_factor,
                stops_last=stop_last_trials,
            )
            for skipped in range(brackets)
        ]
        self._bracket_of: dict[str, Bracket] = {}
        self._rng = random.Random(seed)

    def on_trial_add(self, trial_id: str) -> None:
        """Choose the bracket of a trial. Not collective."""
        self._bracket_of[trial_id] = self._brackets[self._choose_bracket()]

    def _choose_bracket(self) -> int:
        sizes = [len(bracket.milestones) for bracket in self._brackets]
        weights = [math.exp(size - max(sizes)) for size in sizes]
        return self._rng.choices(range(len(sizes)), weights)[0]

    def on_result(self, trial_id: str, metrics: Mapping[str, Any]) -> Decision:
        """Return whether a trial is among the best at its milestone. Not collective."""
        score = self._score(metrics)
        if score is None:
            return self.CONTINUE
        when, value = score
        if when >= self._max_t and self._stops_last:
            return self.STOP
        is_good = self._bracket_of[trial_id].take(trial_id, when, value)
        return self.CONTINUE if is_good else self.STOP

    def on_complete(self, trial_id: str, metrics: Mapping[str, Any]) -> None:
        """Let the last report count at its milestone. Not collective."""
        bracket = self._bracket_of.pop(trial_id, None)
        score = self._score(metrics)
        if bracket is not None and score is not None:
            bracket.take(trial_id, *score)


ASHAScheduler = AsyncHyperBandScheduler


class Bracket:
    """What trials had at their milestones.

    Parameters
    ----------
    milestones
        In descending order.
    reduction_factor
        One of so many goes on.
    stops_last
        Whether a trial that has been judged at its highest milestone may be judged at a lower one.
    """

    def __init__(
        self, milestones: Iterable[float], reduction_factor: float, *, stops_last: bool
    ) -> None:
        self.milestones = list(milestones)
        self._values: list[dict[str, float]] = [{} for _ in self.milestones]
        self._share = 1 - 1 / reduction_factor
        self._stops_last = stops_last

    def take(self, trial_id: str, when: float, value: float) -> bool:
        """Note a value at the highest milestone that it is the first of; return whether it is good.

        Not collective.
        """
        for milestone, values in zip(self.milestones, self._values, strict=True):
            if when < milestone:
                continue
            if trial_id in values:
                if self._stops_last:
                    continue
                return True
            cutoff = percentile(list(values.values()), self._share)
            values[trial_id] = value
            # NaN is neither: the trial continues, and others are not compared with it.
            return not (cutoff is not None and value < cutoff)
        return True


def milestones(
    grace_period: float, max_t: float, reduction_factor: float, *, skipped: int
) -> list[float]:
    """Return the milestones of a bracket in descending order. Pure.

    Examples
    --------
    >>> milestones(1, 100, 4, skipped=0)
    [64, 16, 4, 1]
    >>> milestones(1, 100, 4, skipped=2)
    [64, 16]
    """
    count = int(math.log(max_t / grace_period) / math.log(reduction_factor) - skipped + 1)
    return [grace_period * reduction_factor ** (k + skipped) for k in reversed(range(count))]


def percentile(values: Iterable[float], share: float) -> float | None:
    """Return the value below which a share of the others is, as NumPy interpolates. Pure.

    NaN does not count. None: there are no values.

    Examples
    --------
    >>> percentile([1.0, 2.0, 3.0, 4.0], 0.75)
    3.25
    """
    found = sorted(value for value in values if not math.isnan(value))
    if not found:
        return None
    position = share * (len(found) - 1)
    index = min(int(position), len(found) - 1)
    below, above = found[index], found[min(index + 1, len(found) - 1)]
    part, difference = position - index, above - below
    # NumPy's two forms, each exact at its end.
    return above - difference * (1 - part) if part >= 0.5 else below + difference * part
