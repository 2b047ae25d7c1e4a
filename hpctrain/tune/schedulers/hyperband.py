"""`HyperBandScheduler`: successive halving in brackets, whose trials wait for each other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpctrain.checks import shown
from hpctrain.errors import ConfigError
from hpctrain.tune.schedulers.scheduler import (
    Decision,
    Population,
    TrialScheduler,
    growing,
    positive,
)


class HyperBandScheduler(TrialScheduler):
    """HyperBand (Li et al., 2018), as Ray Tune does it.

    Trials are put into brackets. All of a bracket run until a milestone, at which they are paused;
    when the last has come, the best ``1 / reduction_factor`` go on to the next one. A trial goes on
    from its newest checkpoint, so the training function has to save them.

    Parameters
    ----------
    time_attr, metric, mode
        As of `TrialScheduler`.
    max_t
        A trial that reaches it is stopped, unless `stop_last_trials` is false.
    reduction_factor
        Each milestone lets one in so many trials go on.
    stop_last_trials
        Whether trials end at `max_t`.

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
        max_t: float = 81,
        reduction_factor: float = 3,
        stop_last_trials: bool = True,
    ) -> None:
        super().__init__(time_attr=time_attr, metric=metric, mode=mode)
        name = type(self).__name__
        max_t = positive(f"{name}(max_t=...)", max_t)
        reduction_factor = growing(name, reduction_factor)
        if max_t < 1:
            raise ConfigError(f"{name}(max_t={shown(max_t)}): milestones are whole. Use 1 or more.")
        self._max_t, self._factor = max_t, reduction_factor
        self._stops_last = bool(stop_last_trials)
        self._num_brackets = round(math.log(max_t) / math.log(reduction_factor)) + 1
        # None: a bracket that would end before it began.
        self._bands: list[list[HalvingBracket | None]] = [[]]
        self._filling: HalvingBracket | None = None
        self._bracket_of: dict[str, HalvingBracket] = {}
        self._stops: list[str] = []
        self._population: Population | None = None

    def set_population(self, population: Population) -> None:
        """Take what answers questions about the trials. Not collective."""
        self._population = population

    def on_trial_add(self, trial_id: str) -> None:
        """Put a trial into the bracket that is not full. Not collective."""
        while self._filling is None or self._filling.is_full:
            if len(self._bands[-1]) == self._num_brackets:
                self._bands.append([])
            self._filling = self._make_bracket(len(self._bands[-1]))
            self._bands[-1].append(self._filling)
        self._filling.add(trial_id)
        self._bracket_of[trial_id] = self._filling

    def _make_bracket(self, halvings: int) -> HalvingBracket | None:
        first = int(self._max_t * self._factor**-halvings)
        if first == 0:
            return None
        return HalvingBracket(
            size=math.ceil(self._num_brackets / (halvings + 1) * self._factor**halvings),
            milestone=first,
            halvings=halvings,
            max_t=self._max_t,
            factor=self._factor,
            stops_last=self._stops_last,
        )

    def on_result(self, trial_id: str, metrics: Mapping[str, Any]) -> Decision:
        """Return whether a trial goes on, waits for others, or is stopped. Not collective."""
        score, bracket = self._score(metrics), self._bracket_of[trial_id]
        if score is None:
            return self.CONTINUE
        is_over = score[0] >= self._max_t and self._stops_last
        if trial_id not in bracket:
            # It has failed, and was run again: the others have not waited.
            return self.STOP if is_over else self.CONTINUE
        if not bracket.lets_continue(trial_id):
            # It comes to its next report before it stops, or cannot be paused.
            return self.STOP if is_over else self.PAUSE
        bracket.take(trial_id, *score)
        if bracket.lets_continue(trial_id):
            return self.CONTINUE
        return self._halve(bracket, trial_id)

    def on_remove(self, trial_id: str) -> None:
        """Let the others of its bracket wait for it no longer. Not collective."""
        bracket = self._bracket_of[trial_id]
        if trial_id in bracket:
            bracket.remove(trial_id)
            self._halve(bracket, None)

    def take_stops(self) -> Sequence[str]:
        """Return which trials that wait are to end since the last call. Not collective."""
        if self._filling is not None:
            # Its trials wait for further ones, until it turns out that none come.
            self._halve(self._filling, None)
        taken, self._stops = self._stops, []
        return taken

    def choose(self, waiting: Sequence[str]) -> str | None:
        """Return a trial of the first band, of its bracket that is behind; None if all wait.

        Not collective.
        """
        for trial_id in self._in_order():
            if trial_id in waiting and self._bracket_of[trial_id].lets_continue(trial_id):
                return trial_id
        return next((each for each in waiting if each not in self._bracket_of[each]), None)

    def _in_order(self) -> Iterator[str]:
        for band in self._bands:
            brackets = [bracket for bracket in band if bracket is not None]
            for bracket in sorted(brackets, key=lambda each: each.completion):
                yield from bracket.trials

    def _halve(self, bracket: HalvingBracket, current: str | None) -> Decision:
        """Halve a bracket while all have come; return what becomes of the one that came last."""
        assert self._population is not None
        if not (bracket.is_full or self._population.is_complete):
            return self.PAUSE
        bad: list[str] = []
        # Reports that are far apart lead beyond several milestones.
        while bracket.is_due:
            bad += bracket.halve()
        self._stops += [trial_id for trial_id in bad if trial_id != current]
        if current in bad:
            return self.STOP
        if current is None or not bracket.lets_continue(current):
            return self.PAUSE
        return self.CONTINUE


class HalvingBracket:
    """Trials that run to the same milestones.

    Parameters
    ----------
    size
        How many trials it has when it is full.
    milestone
        The first one.
    halvings
        How often they are halved.
    max_t
        The last milestone.
    factor
        What is divided by.
    stops_last
        Whether trials are stopped at the last milestone.
    """

    def __init__(
        self,
        *,
        size: int,
        milestone: int,
        halvings: int,
        max_t: float,
        factor: float,
        stops_last: bool,
    ) -> None:
        self._size, self._max_t, self._factor = size, max_t, factor
        self._stops_last = stops_last
        self._num_added, self._num_left, self._halvings = 0, size, halvings
        self._milestone = milestone
        self._last: dict[str, tuple[float, float]] = {}
        self._done = 0.0
        self._work = _count_work(size, milestone, halvings, max_t=max_t, factor=factor)

    def __contains__(self, trial_id: str) -> bool:
        """Return whether a trial has not ended."""
        return trial_id in self._last

    @property
    def trials(self) -> list[str]:
        """Those that have not ended."""
        return list(self._last)

    @property
    def is_full(self) -> bool:
        """Whether it has had all its trials."""
        return self._num_added >= self._size

    @property
    def all_have_come(self) -> bool:
        """Whether all are at the milestone."""
        return all(when >= self._milestone for when, _ in self._last.values())

    @property
    def is_due(self) -> bool:
        """Whether there are trials, and all are at a milestone after which not all go on."""
        return bool(self._last) and self.all_have_come and not self._is_endless

    @property
    def is_finished(self) -> bool:
        """Whether all are at the last milestone."""
        return self._stops_last and self._halvings == 0 and self.all_have_come

    @property
    def completion(self) -> float:
        """How much of its work is done, from 0 to 1."""
        return 1.0 if self.is_finished else min(self._done / self._work, 1.0)

    def add(self, trial_id: str) -> None:
        """Add a trial. Not collective."""
        self._last[trial_id] = 0.0, 0.0
        self._num_added += 1

    def remove(self, trial_id: str) -> None:
        """Remove a trial. Not collective."""
        self._last.pop(trial_id, None)

    def take(self, trial_id: str, when: float, value: float) -> None:
        """Note a report of a trial. Not collective."""
        self._done += when - self._last[trial_id][0]
        # NaN would be anywhere in the order.
        self._last[trial_id] = when, -math.inf if math.isnan(value) else value

    def lets_continue(self, trial_id: str) -> bool:
        """Return whether a trial goes on. Not collective."""
        return self._is_endless or self._last[trial_id][0] < self._milestone

    @property
    def _is_endless(self) -> bool:
        return not self._stops_last and self._halvings == 0

    def halve(self) -> list[str]:
        """Go to the next milestone without some trials, which are to end; return those.

        Not collective. At the last milestone all end.
        """
        ended = self.trials if self._halvings == 0 else self._go_to_next()
        for trial_id in ended:
            self.remove(trial_id)
        return ended

    def _go_to_next(self) -> list[str]:
        """Go to the next milestone; return which trials are not good enough for that."""
        self._halvings -= 1
        self._num_left = math.ceil(self._num_left / self._factor)
        self._milestone = int(min(self._milestone * self._factor, self._max_t))
        ranked = sorted(self._last, key=lambda trial_id: self._last[trial_id][1])
        return ranked[: -self._num_left]


def _count_work(size: int, step: float, halvings: int, *, max_t: float, factor: float) -> float:
    """Return the time that all trials of a bracket take together, as Ray Tune counts it."""
    work, first = 0.0, step
    for _ in range(halvings + 1):
        work += size * int(step)
        size = math.ceil(size / factor)
        step = int(min(step * factor, max_t - first))
    return work
