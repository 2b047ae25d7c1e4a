"""`OptunaSearch`: Optuna proposes, by its ask-and-tell interface."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hpctrain.checks import shown
from hpctrain.errors import ConfigError
from hpctrain.metric_names import find_number, find_score
from hpctrain.tune.domains import Categorical, Domain, Float, Integer
from hpctrain.tune.search.searcher import Searcher
from hpctrain.tune.variants import show_path
from hpctrain.unresolved import find_unresolved

_PLAIN = (str, int, float, bool, type(None))


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A parameter as Optuna sees it."""

    distribution: Any
    """One of ``optuna.distributions``."""
    value_of: Callable[[Any], Any]
    """Returns the value of what Optuna has chosen."""
    choice_of: Callable[[Any], Any]
    """Returns what Optuna would have chosen for a value."""


class OptunaSearch(Searcher):
    """Let Optuna propose the configurations. Needs ``pip install 'hpctrain[optuna]'``.

    Parameters
    ----------
    space
        Distributions of Optuna by name, or a function of Optuna's trial that asks for them and
        returns constants or None. None: ``param_space`` of the Tuner, without grids and
        `hpctrain.tune.sample_from`.
    metric, mode
        As of `Searcher`.
    sampler
        One of ``optuna.samplers``. None: ``TPESampler(seed=seed)``.
    seed
        Of the sampler, if none is given.

    Raises
    ------
    ConfigError
        If Optuna is not installed.
    """

    def __init__(
        self,
        space: Mapping[str, Any] | Callable[[Any], Mapping[str, Any] | None] | None = None,
        metric: str | None = None,
        mode: str | None = None,
        *,
        sampler: Any = None,
        seed: int | None = None,
    ) -> None:
        super().__init__(metric, mode)
        _import_optuna()
        if space is not None and not callable(space) and not isinstance(space, Mapping):
            raise ConfigError(
                f"OptunaSearch(space={shown(space)}): a dict of Optuna's distributions, or a "
                f"function of Optuna's trial, is needed."
            )
        if sampler is not None and seed is not None:
            raise ConfigError(
                "OptunaSearch(sampler=..., seed=...): the seed is of the default sampler. Give "
                "yours its own, and leave seed out."
            )
        self._space = space
        self._sampler = sampler
        self._seed = seed
        self._parameters: dict[str, Parameter] = {}
        self._study: Any = None
        self._trials: dict[str, Any] = {}

    def set_search_properties(
        self, metric: str | None, mode: str | None, space: Mapping[str, Any]
    ) -> None:
        """Take what is optimized, and convert the search space. Not collective.

        Raises
        ------
        ConfigError
            If Optuna has no such distribution.
        """
        super().set_search_properties(metric, mode, space)
        optuna = _import_optuna()
        if self._space is None:
            self._parameters = convert_space(space)
        elif isinstance(self._space, Mapping):
            self._parameters = {name: _as_it_is(given) for name, given in self._space.items()}
        self._study = optuna.create_study(
            direction="minimize" if self.mode == "min" else "maximize",
            sampler=self._sampler or optuna.samplers.TPESampler(seed=self._seed),
        )

    def suggest(self, trial_id: str) -> Mapping[str, Any]:
        """Return a configuration, by path of the parameter. Not collective."""
        if callable(self._space):
            trial = self._trials[trial_id] = self._study.ask()
            constants = self._space(trial) or {}
            return {**trial.params, **constants}
        trial = self._trials[trial_id] = self._study.ask(
            {name: parameter.distribution for name, parameter in self._parameters.items()}
        )
        return {
            name: parameter.value_of(trial.params[name])
            for name, parameter in self._parameters.items()
        }

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        """Report a value between the first and the last. Not collective."""
        assert self.metric is not None
        score, step = find_score(result, self.metric), find_number(result, "training_iteration")
        trial = self._trials.get(trial_id)
        if trial is not None and score is not None and step is not None:
            trial.report(score, int(step))

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        """Tell Optuna the last value of a trial, or that it failed. Not collective."""
        assert self.metric is not None
        optuna = _import_optuna()
        trial = self._trials.pop(trial_id, None)
        if trial is None:
            return
        score = find_score(result or {}, self.metric)
        if error or score is None:
            self._study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            self._study.tell(trial, score)

    def restore_trial(self, trial_id: str, config: Mapping[str, Any]) -> None:
        """Propose again what was proposed for a trial. Not collective."""
        if callable(self._space):
            # What it asked for is in the config by the same names.
            chosen = {k: v for k, v in config.items() if isinstance(v, _PLAIN)}
        else:
            chosen = {
                name: parameter.choice_of(_find(config, name))
                for name, parameter in self._parameters.items()
            }
        self._study.enqueue_trial(chosen)
        self.suggest(trial_id)


def convert_space(space: Mapping[str, Any]) -> dict[str, Parameter]:
    """Return the parameters of a search space for Optuna, by path. Not collective.

    Raises
    ------
    ConfigError
        If Optuna has no such distribution.
    """
    return {show_path(p): _convert(show_path(p), domain) for p, domain in find_unresolved(space)}


def _convert(name: str, domain: Domain | dict[str, Any]) -> Parameter:
    distributions = _import_optuna().distributions
    if isinstance(domain, Float):
        step = None if domain.log else domain.q
        found = distributions.FloatDistribution(
            domain.lower, domain.upper, log=domain.log, step=step
        )
        if domain.q is None or not domain.log:
            return _as_it_is(found)
        q = domain.q
        # Optuna has no steps on a logarithmic scale.
        return Parameter(
            distribution=found, value_of=lambda chosen: round(chosen / q) * q, choice_of=_same
        )
    if isinstance(domain, Integer):
        q = domain.q
        first = -(-domain.lower // q)
        last = domain.upper - 1 if q == 1 else domain.upper // q
        # In steps: with a logarithm Optuna takes 1 only.
        return Parameter(
            distribution=distributions.IntDistribution(first, last, log=domain.log),
            value_of=lambda chosen: chosen * q,
            choice_of=lambda value: value // q,
        )
    if isinstance(domain, Categorical):
        values = list(domain.categories)
        if all(isinstance(value, _PLAIN) for value in values):
            return _as_it_is(distributions.CategoricalDistribution(values))
        # Optuna takes plain values only.
        return Parameter(
            distribution=distributions.CategoricalDistribution(list(range(len(values)))),
            value_of=lambda chosen: values[chosen],
            choice_of=lambda value: next(i for i, known in enumerate(values) if known == value),
        )
    raise ConfigError(
        f"OptunaSearch cannot choose {name} from {shown(domain)}. Use choice(), uniform(), "
        f"randint() and their variants, or leave search_alg out."
    )


def _as_it_is(distribution: Any) -> Parameter:
    return Parameter(distribution=distribution, value_of=_same, choice_of=_same)


def _same(value: Any) -> Any:
    return value


def _find(config: Any, name: str) -> Any:
    if isinstance(config, Mapping) and name in config:
        return config[name]
    first, _, rest = name.partition("/")
    if isinstance(config, Mapping):
        inside = config[first]
    elif isinstance(config, (list, tuple)):
        inside = config[int(first)]
    else:
        inside = getattr(config, first)
    return _find(inside, rest) if rest else inside


def _import_optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise ConfigError("OptunaSearch needs Optuna: pip install 'hpctrain[optuna]'.") from error
    return optuna
