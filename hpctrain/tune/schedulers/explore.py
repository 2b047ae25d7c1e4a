"""What Population Based Training makes of a configuration: each hyperparameter drawn anew or moved.

The draws are Ray Tune's, in its order.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hpctrain.checks import did_you_mean, plain_number, shown
from hpctrain.errors import ConfigError
from hpctrain.printable import describe_error
from hpctrain.tune.domains import Categorical, Domain, Function, Grid
from hpctrain.tune.variants import copy_containers, resolve, show_path
from hpctrain.unresolved import Path, find_unresolved, is_grid_mapping


def check_mutations(mutations: object, path: Path = ()) -> None:
    """Refuse what hyperparameters cannot be drawn from. Pure.

    Raises
    ------
    ConfigError
        If a value is no list, domain, function or dict of such.
    """
    if not isinstance(mutations, Mapping):
        raise ConfigError(
            f"hyperparam_mutations={shown(mutations)}: a dict is needed, with the names of "
            f"hyperparameters: {{'lr': tune.loguniform(1e-4, 1e-1), 'size': [32, 64]}}."
        )
    for name, values in mutations.items():
        where = f"hyperparam_mutations: {show_path((*path, name))}"
        if isinstance(values, (Function, Grid)) or is_grid_mapping(values):
            raise ConfigError(
                f"{where} is {shown(values)}, from which nothing can be drawn later. Give a list "
                f"of values, uniform(), choice() and their like, or a function without arguments."
            )
        if isinstance(values, Mapping):
            check_mutations(values, (*path, name))
        elif isinstance(values, (list, tuple)):
            if not values:
                raise ConfigError(f"{where} is an empty list. Give its values.")
            for _, domain in find_unresolved(values):
                raise ConfigError(
                    f"{where} is a list with a domain, {shown(domain)}: a value moves to its "
                    f"neighbour in a list. Give the values, or choice([...]) in place of the list."
                )
        elif not isinstance(values, Domain) and not callable(values):
            raise ConfigError(
                f"{where} is {shown(values)}. A list of values, a domain such as uniform(), a "
                f"function without arguments, or a dict of such is needed."
            )


def check_names(
    mutations: Mapping[str, Any], space: Any, path: Path = (), *, multiplies: bool = True
) -> None:
    """Refuse hyperparameters that a search space lacks, or that cannot be changed. Pure.

    Parameters
    ----------
    multiplies
        Whether values may be multiplied: not, if all are drawn anew.

    Raises
    ------
    ConfigError
        If one is not there, or not in a dict, or has values that cannot be multiplied.
    """
    for name, values in mutations.items():
        if not isinstance(space, Mapping) or name not in space:
            names = list(space) if isinstance(space, Mapping) else []
            meant = did_you_mean(name, names) or (
                f"It has {', '.join(map(str, names))}." if names else "No dict is there."
            )
            raise ConfigError(
                f"hyperparam_mutations names {show_path((*path, name))!r}, which param_space "
                f"lacks: the first value of a hyperparameter is drawn there. {meant}"
            )
        if isinstance(values, Mapping):
            check_names(values, space[name], (*path, name), multiplies=multiplies)
        elif multiplies and not isinstance(values, (list, tuple)):
            for value in (*_known_values(values), *_known_values(space[name])):
                _multiply(value, 1.0, (*path, name))


def _known_values(given: Any) -> Sequence[Any]:
    """Return what a hyperparameter may be, as far as that is known."""
    if isinstance(given, Categorical):
        values: Sequence[Any] = given.categories
    elif isinstance(given, Grid):
        values = given.values
    elif is_grid_mapping(given):
        values = list(given["grid_search"])
    else:
        values = () if callable(given) else (given,)
    # What is drawn from another domain inside is not known.
    return [value for value in values if not isinstance(value, Domain)]


def explore(
    config: Mapping[str, Any],
    mutations: Mapping[str, Any],
    *,
    resample_probability: float,
    factors: Sequence[float],
    custom: Callable[[dict[str, Any]], Any] | None,
    rng: random.Random,
) -> dict[str, Any]:
    """Return a configuration with other hyperparameters. Pure, as far as functions are.

    Parameters
    ----------
    mutations
        For each name a list (the value moves to a neighbour), a domain or a function (it is
        multiplied by one of `factors`), or a dict of such.
    resample_probability
        How often a value is drawn anew in place of that.
    custom
        Called with the result; returns the one that counts.

    Raises
    ------
    ConfigError
        If a value cannot be multiplied, or a function fails or returns none.
    """
    changed = _explore(config, mutations, (), resample_probability, factors, rng)
    if custom is None:
        return changed
    found = _call("custom_explore_fn", custom, changed)
    if not isinstance(found, dict):
        raise ConfigError(
            f"custom_explore_fn returned {shown(found)}. Return the configuration, a dict."
        )
    if lost := _find_lost(mutations, found):
        raise ConfigError(
            f"custom_explore_fn returned a configuration without {show_path(lost)}, which "
            f"hyperparam_mutations changes. Change what it is called with, and return that."
        )
    for path, domain in find_unresolved(found):
        raise ConfigError(
            f"custom_explore_fn returned {shown(domain)} as {show_path(path)}. Return a value that "
            f"is drawn from it."
        )
    return found


def _explore(
    config: Mapping[str, Any],
    mutations: Mapping[str, Any],
    path: Path,
    resample_probability: float,
    factors: Sequence[float],
    rng: random.Random,
) -> dict[str, Any]:
    changed: dict[str, Any] = copy_containers(dict(config))
    for name, values in mutations.items():
        here, old = (*path, name), config[name]
        if isinstance(values, Mapping):
            changed[name] = _explore(old, values, here, resample_probability, factors, rng)
        elif isinstance(values, (list, tuple)):
            if rng.random() < resample_probability or old not in values:
                changed[name] = rng.choice(values)
            else:
                index = values.index(old) + rng.choice([-1, 1])
                changed[name] = values[min(max(index, 0), len(values) - 1)]
        elif rng.random() < resample_probability:
            changed[name] = _of_its_kind(old, _draw(values, here, rng))
        else:
            changed[name] = _of_its_kind(old, _multiply(old, rng.choice(factors), here))
    return changed


def _find_lost(mutations: Mapping[str, Any], config: Any, path: Path = ()) -> Path:
    """Return the path of a hyperparameter that a configuration lacks; empty if it has all."""
    for name, values in mutations.items():
        if not isinstance(config, Mapping) or name not in config:
            return (*path, name)
        is_nested = isinstance(values, Mapping)
        if is_nested and (lost := _find_lost(values, config[name], (*path, name))):
            return lost
    return ()


def _draw(values: Any, path: Path, rng: random.Random) -> Any:
    if not isinstance(values, Domain):
        values = _call(f"hyperparam_mutations: the function of {show_path(path)}", values)
    # What is drawn may hold domains.
    name = show_path(path)
    return resolve({name: values}, combination=0, rng_of=lambda _: rng)[name]


def _multiply(old: Any, factor: float, path: Path) -> Any:
    number = plain_number(old)
    if isinstance(number, (int, float)):
        return number * factor
    raise ConfigError(
        f"{show_path(path)} is {shown(old)}, which cannot be multiplied, as Population "
        f"Based Training does with what is no list. Give hyperparam_mutations a list of values: "
        f"[...] in place of choice([...])."
    )


def _of_its_kind(old: Any, new: Any) -> Any:
    if isinstance(old, bool):
        return bool(new)
    # numpy's integers are no int: functions that draw with numpy return them.
    old, new = plain_number(old), plain_number(new)
    return round(new) if isinstance(old, int) and isinstance(new, (int, float)) else new


def _call(what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    # Whatever a user's function raises.
    except Exception as error:
        raise ConfigError(f"{what} failed: {describe_error(error)}") from error
