"""`PopulationBasedTraining`: the worst trials go on as the best, with new hyperparameters."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpctrain.checks import is_number, plain_number, shown
from hpctrain.errors import ConfigError
from hpctrain.tune.schedulers.explore import check_mutations, check_names, explore
from hpctrain.tune.schedulers.scheduler import (
    Decision,
    Exploit,
    Population,
    TrialScheduler,
    positive,
    whole,
)


@dataclass(kw_only=True)
class _Member:
    """What is known of a trial from when it last came to its interval."""

    score: float | None = None
    perturbed_at: float = 0.0
    trained_until: float = 0.0
    is_best: bool = False
    """Whether it was among the best then: only as such a trial do others go on."""
    has_ended: bool = False


class PopulationBasedTraining(TrialScheduler):
    """Population Based Training (Jaderberg et al., 2017), as Ray Tune does it.

    A trial that comes to its interval and is among the worst goes on from the newest checkpoint of
    one of the best, with hyperparameters made of that trial's. The training function has to save
    checkpoints, and to begin with ``get_checkpoint()``. If more trials wait than fit on the
    machine, a trial yields its slot at each interval.

    Parameters
    ----------
    time_attr, metric, mode
        As of `TrialScheduler`. A trial that goes on as another one has that one's
        ``training_iteration`` and ``time_total_s``.
    perturbation_interval
        Of the time between two comparisons of a trial.
    burn_in_period
        No trial is compared before it.
    hyperparam_mutations
        For each hyperparameter of ``param_space`` a list, of which the value moves to a neighbour;
        a domain, or a function without arguments, whose value is multiplied by a factor; or a dict
        of such. Values that cannot be multiplied need a list.
    quantile_fraction
        The share of trials that are the worst, and the best: up to 0.5.
    resample_probability
        How often a value is drawn anew.
    perturbation_factors
        One of which a number is multiplied by.
    custom_explore_fn
        Called with the configuration that was made, and returns the one to use.
    log_config
        Ray Tune's argument: ``tune.jsonl`` has each change of a configuration in any case.
    require_attrs
        Whether a report without the metric, or without the time, is an error; otherwise it is
        passed over. The first one of each trial needs both in any case.
    synch
        Whether trials wait until all have come to their interval.
    seed
        Of the choice of the other trial, and of the draws; a function draws by itself.

    Raises
    ------
    ConfigError
        If a value is out of range, or neither `hyperparam_mutations` nor `custom_explore_fn` is
        given.
    """

    def __init__(
        self,
        time_attr: str = "time_total_s",
        metric: str | None = None,
        mode: str | None = None,
        perturbation_interval: float = 60.0,
        burn_in_period: float = 0.0,
        hyperparam_mutations: Mapping[str, Any] | None = None,
        quantile_fraction: float = 0.25,
        resample_probability: float = 0.25,
        perturbation_factors: Sequence[float] = (1.2, 0.8),
        custom_explore_fn: Callable[[dict[str, Any]], Any] | None = None,
        log_config: bool = True,
        require_attrs: bool = False,
        synch: bool = False,
        *,
        seed: int = 0,
    ) -> None:
        super().__init__(time_attr=time_attr, metric=metric, mode=mode)
        self._interval = positive(f"{_NAME}(perturbation_interval=...)", perturbation_interval)
        if burn_in_period != 0:
            burn_in_period = positive(f"{_NAME}(burn_in_period=...)", burn_in_period)
        self._share = _share("quantile_fraction", quantile_fraction, most=0.5)
        self._resample_probability = _share("resample_probability", resample_probability, most=1)
        self._factors = _factors(perturbation_factors)
        self._seed = whole(f"{_NAME}(seed=...)", seed, at_least=0)
        if custom_explore_fn is not None and not callable(custom_explore_fn):
            raise ConfigError(
                f"{_NAME}(custom_explore_fn={shown(custom_explore_fn)}): a function that is given "
                f"a configuration and returns one is needed."
            )
        if not hyperparam_mutations and custom_explore_fn is None:
            raise ConfigError(
                f"{_NAME} has nothing to change. Give it hyperparam_mutations={{'lr': "
                f"tune.loguniform(1e-4, 1e-1)}}, or custom_explore_fn=."
            )
        check_mutations(hyperparam_mutations or {})
        self._burn_in = plain_number(burn_in_period)
        self._mutations = dict(hyperparam_mutations or {})
        self._custom = custom_explore_fn
        self._synch = bool(synch)
        self._requires = bool(require_attrs)
        self._members: dict[str, _Member] = {}
        self._exploits: list[Exploit] = []
        self._population: Population | None = None
        self._next_sync = max(self._interval, self._burn_in)

    def check_sweep(self, space: Mapping[str, Any], search_alg: object) -> None:
        """Refuse search algorithms, and what `check_names` refuses. Not collective."""
        if search_alg is not None:
            raise ConfigError(
                f"{_NAME} changes configurations itself, and {type(search_alg).__name__} would "
                f"learn from values that it did not propose. Leave search_alg out."
            )
        check_names(self._mutations, space, multiplies=self._resample_probability < 1)

    def set_population(self, population: Population) -> None:
        """Take what answers questions about the trials. Not collective."""
        self._population = population

    def on_trial_add(self, trial_id: str) -> None:
        """Note a trial. Not collective."""
        self._members[trial_id] = _Member()

    def on_result(self, trial_id: str, metrics: Mapping[str, Any]) -> Decision:
        """Return whether a trial goes on, or yields its slot. Not collective."""
        found = self._score(metrics)
        if found is None:
            self._refuse(trial_id, metrics)
            return self.CONTINUE
        when, value = found
        member = self._members[trial_id]
        if when < self._burn_in or when - member.perturbed_at < self._interval:
            return self.CONTINUE
        # One that was to be run again has ended before.
        member.has_ended = False
        # NaN would be anywhere in the order.
        member.score = -math.inf if math.isnan(value) else value
        member.trained_until = when
        if self._synch:
            if self._all_have_come(besides=trial_id):
                self._compare_all(when)
            return self.PAUSE
        member.perturbed_at = when
        worst, best = self._quantiles()
        self._compare(trial_id, when, worst, best)
        is_exploiting = any(exploit.trial_id == trial_id for exploit in self._exploits)
        if is_exploiting or self._known.has_waiting(besides=trial_id):
            return self.PAUSE
        return self.CONTINUE

    def _refuse(self, trial_id: str, metrics: Mapping[str, Any]) -> None:
        """Refuse a report that a trial cannot be compared by, if that is asked for."""
        if self._requires and not self.is_replaying:
            raise ConfigError(
                f"{trial_id} made a report without {self.metric!r} or {self.time_attr!r}, the "
                f"numbers that it is compared by: it has {', '.join(map(str, metrics))}. Report "
                f"them, or pass such reports over: {_NAME}(require_attrs=False)."
            )

    def on_remove(self, trial_id: str) -> None:
        """Note that a trial has ended; the others do not wait for it. Not collective."""
        self._members[trial_id].has_ended = True
        live = self._live()
        if self._synch and live and self._all_have_come():
            self._compare_all(max(self._members[each].trained_until for each in live))

    def on_exploit(self, exploit: Exploit) -> None:
        """Let a trial have the time of the other one. Not collective."""
        member, donor = self._members[exploit.trial_id], self._members[exploit.donor]
        member.perturbed_at, member.trained_until = donor.perturbed_at, donor.trained_until

    def take_exploits(self) -> Sequence[Exploit]:
        """Return which trials are to go on as others since the last call. Not collective."""
        taken, self._exploits = self._exploits, []
        return taken

    def choose(self, waiting: Sequence[str]) -> str | None:
        """Return the trial that has been trained least; None if all wait for others.

        Not collective.
        """
        if self._synch:
            waiting = [e for e in waiting if self._members[e].trained_until < self._next_sync]
        return min(waiting, key=lambda e: self._members[e].trained_until, default=None)

    @property
    def _known(self) -> Population:
        assert self._population is not None
        return self._population

    def _live(self) -> list[str]:
        return [trial_id for trial_id, each in self._members.items() if not each.has_ended]

    def _quantiles(self) -> tuple[list[str], list[str]]:
        """Return the worst and the best of the trials that have come to their interval once."""
        found = {each: self._members[each].score for each in self._live()}
        scores = {each: score for each, score in found.items() if score is not None}
        ranked = sorted(scores, key=scores.__getitem__)
        if len(ranked) <= 1:
            return [], []
        count = math.ceil(len(ranked) * self._share)
        if count > len(ranked) / 2:
            count = len(ranked) // 2
        # Of a share of 0 none are the worst, and as in Ray Tune all are the best.
        return ranked[:count], ranked[-count:]

    def _compare(
        self, trial_id: str, when: float, worst: Sequence[str], best: Sequence[str]
    ) -> None:
        """Let a trial go on as one of the best, if it is among the worst."""
        self._members[trial_id].is_best = trial_id in best
        if trial_id not in worst or self.is_replaying:
            return
        rng = self._rng_of(trial_id, when)
        donor = rng.choice(best)
        if not self._members[donor].is_best or not self._known.can_donate(donor):
            return
        config = explore(
            self._known.config_of(donor),
            self._mutations,
            resample_probability=self._resample_probability,
            factors=self._factors,
            custom=self._custom,
            rng=rng,
        )
        exploit = Exploit(trial_id=trial_id, donor=donor, config=config)
        self._exploits.append(exploit)
        self.on_exploit(exploit)

    def _rng_of(self, trial_id: str, when: float) -> random.Random:
        # A restored sweep draws what the sweep before would have drawn.
        return random.Random(f"{self._seed}/{trial_id}/{when!r}")

    def _all_have_come(self, *, besides: str = "") -> bool:
        late = (
            each
            for each in self._live()
            if each != besides and self._members[each].trained_until < self._next_sync
        )
        return self._known.is_complete and next(late, None) is None

    def _compare_all(self, when: float) -> None:
        worst, best = self._quantiles()
        others = [each for each in self._members if each not in worst and each not in best]
        for each in (*best, *others, *worst):
            self._members[each].perturbed_at = when
            self._compare(each, when, worst, best)
        last = max(each.trained_until for each in self._members.values())
        self._next_sync = max(self._next_sync + self._interval, last)
        if all(self._members[each].trained_until >= self._next_sync for each in self._live()):
            # Their times are further apart than the interval, and none could go on.
            self._next_sync = last + self._interval


_NAME = PopulationBasedTraining.__name__


def _share(name: str, value: Any, *, most: float) -> Any:
    value = plain_number(value)
    if not is_number(value) or not 0 <= value <= most:
        raise ConfigError(f"{_NAME}({name}={shown(value)}): a number from 0 to {most} is needed.")
    return value


def _factors(factors: object) -> tuple[float, ...]:
    if not isinstance(factors, (list, tuple)) or not factors:
        raise ConfigError(
            f"{_NAME}(perturbation_factors={shown(factors)}): some numbers are needed: (1.2, 0.8)."
        )
    return tuple(positive(f"{_NAME}(perturbation_factors=...): one", each) for each in factors)
