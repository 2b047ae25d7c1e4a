"""`OptunaSearch`: Optuna proposes, by its ask-and-tell interface."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hpctrain import environ
from hpctrain.checks import shown
from hpctrain.errors import ConfigError
from hpctrain.log import log
from hpctrain.metric_names import as_finite, find_number
from hpctrain.tune.plain import is_plain
from hpctrain.tune.search.optuna_arguments import (
    SEEDS,
    check_pruner,
    check_rewards,
    check_sampler,
    check_study,
)
from hpctrain.tune.search.parameters import (
    Parameter,
    convert_space,
    import_optuna,
    is_same,
    take_space,
)
from hpctrain.tune.search.points import by_path, check_points, choose_point
from hpctrain.tune.search.searcher import STOP, Searcher
from hpctrain.tune.search.study import Study


class OptunaSearch(Searcher):
    """Let Optuna propose the configurations. Needs ``pip install 'hpctrain[optuna]'``.

    Parameters
    ----------
    space
        Distributions of Optuna or domains of `hpctrain.tune` by name, or a function of Optuna's
        trial that asks for distributions and returns constants or None. None: ``param_space`` of
        the Tuner, without grids and `hpctrain.tune.sample_from`.
    metric, mode
        As of `Searcher`.
    points_to_evaluate
        Configurations that are proposed first; what one leaves out is drawn.
    sampler
        One of ``optuna.samplers``. None: ``TPESampler(seed=seed)``.
    study_name
        Of the study in `storage`; None: ``optuna``. One that exists goes on: Optuna learns from the
        trials of other sweeps in it, too.
    storage
        One of ``optuna.storages``, or an address such as ``sqlite:///study.db``. None: the study is
        kept in memory, and made anew from the ledger when the sweep is restored.
    seed
        Of the sampler, if none is given.
    evaluated_rewards
        Values of `points_to_evaluate` that are known: one for each, which are not run then.
    pruner
        One of ``optuna.pruners``: a trial that it prunes is stopped after that report. None: all
        trials go on. It sees reports by their ``training_iteration``.

    Raises
    ------
    ConfigError
        If Optuna is not installed, or arguments contradict each other.

    Notes
    -----
    A sweep that is restored does not draw again what it has drawn: the default sampler goes on with
    `seed` plus the number of trials there are, and a sampler of yours with a new seed
    (``sampler.reseed_rng()``). One that counts its draws, such as ``QMCSampler``, would begin with
    the first again: of yours, what was drawn before is asked for anew, once for each trial that
    there was, so that it goes on where it was.
    """

    def __init__(
        self,
        space: Mapping[str, Any] | Callable[[Any], Mapping[str, Any] | None] | None = None,
        metric: str | None = None,
        mode: str | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        sampler: Any = None,
        study_name: str | None = None,
        storage: Any = None,
        seed: int | None = None,
        evaluated_rewards: Sequence[float] | None = None,
        *,
        pruner: Any = None,
    ) -> None:
        super().__init__(metric, mode)
        import_optuna()
        if space is not None and not callable(space) and not isinstance(space, Mapping):
            raise ConfigError(
                f"OptunaSearch(space={shown(space)}): a dict of Optuna's distributions or of "
                f"domains, or a function of Optuna's trial, is needed."
            )
        check_study(storage, study_name)
        check_sampler(sampler, seed)
        check_pruner(pruner)
        rewards = check_rewards(
            evaluated_rewards, points_to_evaluate, space_is_function=callable(space)
        )
        self._space = space
        self._given_points = check_points(points_to_evaluate)
        self._points: list[Mapping[str, Any]] = []
        self._sampler, self._pruner = sampler, pruner
        self.stops_trials = pruner is not None
        self._storage, self._study_name = storage, study_name
        self._seed, self._rewards = seed, rewards
        # The sweep is restored from a pickle of this.
        self._sweep = secrets.token_hex(8)
        self._parameters: dict[str, Parameter] = {}
        self._study: Study | None = None
        self._restored = 0
        self._known: list[Mapping[str, Any]] = []
        self._last: dict[str, float] = {}
        """Last value of each trial that has not ended: a later report may lack it."""
        self._repeats_left = 0

    def set_search_properties(
        self, metric: str | None, mode: str | None, space: Mapping[str, Any]
    ) -> None:
        """Take what is optimized, and convert the search space. Not collective.

        Raises
        ------
        ConfigError
            If Optuna has no such distribution, or the space no such point.
        """
        super().set_search_properties(metric, mode, space)
        optuna = import_optuna()
        if self._space is None:
            self._parameters = convert_space(space)
        elif isinstance(self._space, Mapping):
            self._parameters = take_space(self._space)
        if callable(self._space):
            # What it asks for is not known before.
            self._points = [dict(by_path(point)) for point in self._given_points]
        else:
            self._points = [
                choose_point(point, self._parameters, space, number=number)
                for number, point in enumerate(self._given_points)
            ]
        self._last = {}
        self._study = study = Study(
            self._sweep,
            mode=str(self.mode),
            sampler=self._sampler or optuna.samplers.TPESampler(seed=self._seed),
            pruner=self._pruner,
            # A dry run leaves nothing behind.
            storage=None if environ.dry_run_requested() else self._storage,
            name=None if environ.dry_run_requested() else self._study_name,
        )
        if self._rewards:
            distributions = {name: each.distribution for name, each in self._parameters.items()}
            for number, value in enumerate(self._rewards):
                chosen = self._points[number]
                study.add(number, parameters=distributions, chosen=chosen, value=value)
            self._points.clear()

    def suggest(self, trial_id: str) -> Mapping[str, Any]:
        """Return a configuration, by path of the parameter. Not collective.

        Raises
        ------
        ConfigError
            If neither a sweep nor the arguments have said what is optimized, and in which space.
        """
        self._begin_without_sweep()
        if self._points:
            self._begun.enqueue(self._points.pop(0))
            return self._ask(trial_id)
        proposed = self._ask(trial_id)
        while self._repeats_left and self._numbers(trial_id) in self._known:
            self._repeats_left -= 1
            self._begun.tell(trial_id, None)
            proposed = self._ask(trial_id)
        return proposed

    def _begin_without_sweep(self) -> None:
        """Begin with what the arguments say, for who asks for proposals by hand."""
        if self._study is not None:
            return
        if self._space is None:
            raise ConfigError(
                "OptunaSearch.suggest() has no search space yet: Tuner.fit() gives it param_space. "
                "To ask for proposals by hand, give OptunaSearch(space=..., metric=..., mode=...)."
            )
        self.set_search_properties(None, None, {})

    def _numbers(self, trial_id: str) -> Mapping[str, Any]:
        """Return the numbers of a proposal, as they are in a config: what is even in the space."""
        categorical = import_optuna().distributions.CategoricalDistribution
        trial = self._begun[trial_id]
        numbers = {
            name: value
            for name, value in trial.params.items()
            if not isinstance(trial.distributions[name], categorical)
        }
        if not numbers:
            return dict(trial.params)
        # Those on a logarithmic scale with steps are rounded.
        return {name: self._value(name, value) for name, value in numbers.items()}

    def _value(self, name: str, chosen: Any) -> Any:
        """Return what a config has of what Optuna has chosen."""
        parameter = self._parameters.get(name)
        return chosen if parameter is None else parameter.value_of(chosen)

    def _ask(self, trial_id: str) -> Mapping[str, Any]:
        if callable(self._space):
            trial = self._begun.ask(trial_id)
            constants = self._space(trial)
            if constants is not None and not isinstance(constants, Mapping):
                raise ConfigError(
                    f"the function of OptunaSearch(space=...) returned {shown(constants)}. Return "
                    f"a dict of constants, or None: what it asks the trial for is taken from there."
                )
            constants = constants or {}
            return {**trial.params, **constants}
        trial = self._begun.ask(
            trial_id, {name: parameter.distribution for name, parameter in self._parameters.items()}
        )
        return {
            name: parameter.value_of(trial.params[name])
            for name, parameter in self._parameters.items()
        }

    @property
    def _begun(self) -> Study:
        assert self._study is not None
        return self._study

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> str | None:
        """Report a value between the first and the last; return ``"STOP"`` to prune the trial.

        Not collective.
        """
        assert self.metric is not None
        value, step = find_number(result, self.metric), find_number(result, "training_iteration")
        if value is None:
            return None
        self._last[trial_id] = value
        score = as_finite(value)
        if score is None or step is None:
            return None
        return STOP if self._begun.report(trial_id, score, int(step)) else None

    def on_trial_complete(
        self, trial_id: str, result: Mapping[str, Any] | None = None, error: bool = False
    ) -> None:
        """Tell Optuna the last value of a trial, or that it failed. Not collective."""
        assert self.metric is not None
        value, last = find_number(result or {}, self.metric), self._last.pop(trial_id, None)
        value = last if value is None else value
        self._begun.tell(trial_id, None if error or value is None else as_finite(value))

    def restore_trial(self, trial_id: str, config: Mapping[str, Any]) -> None:
        """Propose again what was proposed for a trial. Not collective.

        Optuna is not sent what becomes of a trial whose configuration the space cannot propose any
        more, and a warning names it.
        """
        self._restored += 1
        # They were proposed first.
        del self._points[:1]
        self._draw_on()
        self._propose_again(trial_id, config, is_retried=False)

    def retry_trial(self, trial_id: str, config: Mapping[str, Any]) -> None:
        """Propose again what was proposed for a trial that has failed. Not collective.

        For Optuna that one is over: it learns from another one with the same values.
        """
        self._propose_again(trial_id, config, is_retried=True)

    def _propose_again(self, trial_id: str, config: Mapping[str, Any], *, is_retried: bool) -> None:
        try:
            if callable(self._space):
                # What it asked for is in the config by the same names, wherever that is.
                chosen = dict(by_path(config))
            else:
                chosen = {
                    name: parameter.choice_of(_find(config, name))
                    for name, parameter in self._parameters.items()
                }
            if not is_retried and self._begun.take_back(trial_id, chosen, value_of=self._value):
                return
            self._enqueue(chosen)
            self._ask(trial_id)
            params = self._begun[trial_id].params
            changed = [name for name in params if not is_same(params[name], chosen.get(name))]
        # An index or a key that is not there, and a choice that Optuna does not know.
        except (AttributeError, LookupError, ValueError) as error:
            changed = [str(error)]
        else:
            if self._sampler is not None and not is_retried:
                # It may count what it draws, and begin again with the first: QMCSampler does.
                self._known.append(self._numbers(trial_id))
                self._repeats_left += 1
        if changed:
            self._begun.tell(trial_id, None)
            log(
                f"warning: OptunaSearch cannot propose the configuration of {trial_id} again "
                f"({', '.join(changed)}), and does not learn from it. Choose from text and "
                f"numbers, which are found again."
            )

    def _enqueue(self, chosen: Mapping[str, Any]) -> None:
        try:
            self._begun.enqueue(chosen)
        except TypeError:
            # A storage holds JSON: no constant that a space has returned beside what it asked for.
            plain = {name: value for name, value in chosen.items() if is_plain(value)}
            self._begun.enqueue(plain)

    def _draw_on(self) -> None:
        """Let the sampler not repeat its draws: what is enqueued does not advance it."""
        if self._sampler is not None:
            if self._restored == 1:
                self._begun.study.sampler.reseed_rng()
        elif self._seed is not None:
            seed = (self._seed + self._restored) % SEEDS
            self._begun.study.sampler = import_optuna().samplers.TPESampler(seed=seed)


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
