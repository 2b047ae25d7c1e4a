"""Where the configurations of trials come from: the variants of a space, or a search algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Any, Protocol

from hpctrain.checks import shown
from hpctrain.errors import ConfigError
from hpctrain.tune.domains import Domain
from hpctrain.tune.search.searcher import FINISHED, SearchAlgorithm
from hpctrain.tune.variants import Variants, put_values, show_path
from hpctrain.unresolved import find_unresolved


class ConfigSource(Protocol):
    """Gives each trial its configuration."""

    @property
    def learns(self) -> bool:
        """Whether what comes next may depend on what trials report until then."""

    def next(self, number: int, trial_id: str) -> dict[str, Any] | None:
        """Return the configuration of a trial; None if there is none now."""

    def is_done(self, number: int) -> bool:
        """Return whether there are no more than so many trials."""

    def explain_none(self, number: int) -> str:
        """Return why there was no configuration after so many trials."""

    def propose_again(self, trial_id: str) -> dict[str, Any] | None:
        """Return what a search proposes for a trial that there is; None for no configuration."""


@dataclass(frozen=True, kw_only=True)
class VariantSource:
    """Configurations that are known from the beginning."""

    variants: Variants
    learns: bool = field(default=False, init=False)
    _drawn: dict[int, dict[str, Any]] = field(default_factory=dict)

    def draw(self, number: int, trial_id: str) -> dict[str, Any]:
        """Return what `next` will return for a trial. Not collective.

        A function of the space may return another value each time it is called.

        Raises
        ------
        ConfigError
            As of `next`.
        """
        config = self._drawn[number] = self.next(number, trial_id)
        return config

    def next(self, number: int, trial_id: str) -> dict[str, Any]:
        """Return the configuration of a trial. Not collective.

        Raises
        ------
        ConfigError
            If a function of the space fails, or a grid is inside a drawn value.
        """
        if number in self._drawn:
            return self._drawn.pop(number)
        try:
            return self.variants[number]
        except ConfigError as error:
            raise ConfigError(f"{trial_id} has no configuration: {error}") from error

    def is_done(self, number: int) -> bool:
        """Return whether there are no more than so many trials. Not collective."""
        return number >= self.variants.count

    def explain_none(self, number: int) -> str:
        """Return nothing: there is always a configuration. Not collective."""
        return ""

    def propose_again(self, trial_id: str) -> None:
        """Return None: nothing is proposed. Not collective."""


@dataclass(kw_only=True)
class SearchSource:
    """Configurations that a search algorithm proposes."""

    search: SearchAlgorithm
    space: Mapping[str, Any]
    num_samples: int
    has_finished: bool = False
    learns: bool = field(default=True, init=False)
    _suggested: dict[str, Any] = field(default_factory=dict)

    def draw(self, trial_id: str) -> dict[str, Any] | None:
        """Return what `next` will return for a trial. Not collective.

        Raises
        ------
        ConfigError
            As of `next`.
        """
        suggestion = self._suggested[trial_id] = self.search.suggest(trial_id)
        return None if _is_finished(suggestion) else self._config_of(suggestion)

    def next(self, number: int, trial_id: str) -> dict[str, Any] | None:
        """Return the configuration of a trial; None if there is none now. Not collective.

        Raises
        ------
        ConfigError
            If what is proposed is no configuration, or lacks a parameter.
        """
        if trial_id in self._suggested:
            suggestion = self._suggested.pop(trial_id)
        else:
            suggestion = self.search.suggest(trial_id)
        if _is_finished(suggestion):
            self.has_finished = True
            return None
        return self._config_of(suggestion)

    def propose_again(self, trial_id: str) -> dict[str, Any] | None:
        """Return what the search proposes for a trial that there is; None for no configuration.

        Not collective.
        """
        suggestion = self.search.suggest(trial_id)
        try:
            return None if _is_finished(suggestion) else self._config_of(suggestion)
        except ConfigError:
            return None

    def _config_of(self, suggestion: object) -> dict[str, Any] | None:
        if suggestion is None:
            return None
        if not isinstance(suggestion, Mapping):
            raise ConfigError(
                f"{type(self.search).__name__}.suggest() returned {shown(suggestion)}. A dict of "
                f"parameters, None or 'FINISHED' is needed."
            )
        for name in suggestion:
            if not isinstance(name, str):
                raise ConfigError(
                    f"{type(self.search).__name__}.suggest() returned {shown(suggestion)}, with "
                    f"the key {shown(name)}. Keys are names: use text."
                )
        return merge_suggestion(self.space, suggestion)

    def is_done(self, number: int) -> bool:
        """Return whether there are no more than so many trials. Not collective."""
        return self.has_finished or number >= self.num_samples

    def explain_none(self, number: int) -> str:
        """Return why there was no configuration after so many trials. Not collective."""
        name = type(self.search).__name__
        if self.has_finished:
            return f"{name} has finished after {number} of {self.num_samples} trials"
        return (
            f"{name}.suggest() returned None after {number} of {self.num_samples} trials, while "
            f"none was at work that it could wait for"
        )


def _is_finished(suggestion: object) -> bool:
    return isinstance(suggestion, str) and suggestion == FINISHED


def merge_suggestion(space: Mapping[str, Any], suggestion: Mapping[str, Any]) -> dict[str, Any]:
    """Return a space with what is proposed in place of its domains. Pure.

    Parameters
    ----------
    suggestion
        Values by path (``train_loop_config/lr``), or nested as the space is.

    Raises
    ------
    ConfigError
        If a domain is left.

    Examples
    --------
    >>> from hpctrain.tune.domains import uniform
    >>> merge_suggestion({"a": {"lr": uniform(0, 1), "n": 3}}, {"a/lr": 0.5, "b": 1})
    {'a': {'lr': 0.5, 'n': 3}, 'b': 1}
    """
    by_path = {
        path: suggestion[show_path(path)]
        for path, _ in find_unresolved(space)
        if show_path(path) in suggestion
    }
    used = {show_path(path) for path in by_path}
    config = put_values(dict(space), by_path)
    for name, value in suggestion.items():
        if name in used:
            continue
        nested: Any = value
        for key in reversed(name.split("/")):
            nested = {key: nested}
        config = _merge(config, nested)
    for path, domain in find_unresolved(config):
        if path not in dict(find_unresolved(space)):
            raise ConfigError(
                f"the search algorithm proposed a value with {shown(domain)} as {show_path(path)}. "
                f"Nothing draws from it there: propose a value in its place."
            )
        raise ConfigError(
            f"the search algorithm proposed no {show_path(path)}, which param_space has as "
            f"{shown(domain)}. Give it a value there, or leave it out."
        )
    assert isinstance(config, dict)
    return config


def _merge(config: Any, changes: Any) -> Any:
    if not isinstance(changes, Mapping):
        return changes
    if isinstance(config, Mapping):
        return {
            **config,
            **{k: _merge(config[k], v) if k in config else v for k, v in changes.items()},
        }
    if isinstance(config, Domain):
        raise ConfigError(
            f"the search algorithm proposed {shown(dict(changes))} inside of {shown(config)}, "
            f"which param_space has there. Give both the same names."
        )
    if is_dataclass(config) and not isinstance(config, type):
        return replace(
            config, **{name: _merge(getattr(config, name), v) for name, v in changes.items()}
        )
    return changes
