"""``points_to_evaluate``: configurations that a search algorithm proposes before all others."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from hpctrain.checks import did_you_mean, is_number, shown
from hpctrain.errors import ConfigError
from hpctrain.tune.search.parameters import Parameter, import_optuna, is_same
from hpctrain.tune.variants import show_path
from hpctrain.unresolved import children


def check_points(points: object) -> list[Mapping[str, Any]]:
    """Return points, checked to be mappings. Not collective.

    Raises
    ------
    ConfigError
        If one is not.
    """
    if points is None:
        return []
    if not isinstance(points, (list, tuple)) or not all(isinstance(p, Mapping) for p in points):
        raise ConfigError(
            f"points_to_evaluate={shown(points)}: a list of configurations is needed: "
            f"[{{'lr': 0.1, 'momentum': 0.9}}]."
        )
    return list(points)


def choose_point(
    point: Mapping[str, Any],
    parameters: Mapping[str, Parameter],
    space: Mapping[str, Any],
    *,
    number: int,
) -> dict[str, Any]:
    """Return what Optuna would have chosen for a point, which may leave parameters out.

    Not collective.

    Parameters
    ----------
    space
        With values that are not chosen, which a point may have too.
    number
        Of the point, for the error.

    Raises
    ------
    ConfigError
        If it has another parameter, or a value that is not in the space.
    """
    chosen, known = {}, dict(by_path(space))
    for name, value in by_path(point):
        if (parameter := parameters.get(name)) is not None:
            chosen[name] = _choose(name, value, parameter, number)
        elif isinstance(value, Mapping) or any(name.startswith(f"{p}/") for p in parameters):
            # What is inside is looked at by itself, or belongs to a value.
            continue
        elif name not in known:
            meant = did_you_mean(name, parameters) or f"There are {', '.join(parameters)}."
            raise ConfigError(f"points_to_evaluate[{number}] has no parameter {name!r}. {meant}")
        elif not is_same(value, known[name]):
            raise ConfigError(
                f"points_to_evaluate[{number}] has {name}={shown(value)}, which is always "
                f"{shown(known[name])} in param_space."
            )
    return chosen


def _choose(name: str, value: Any, parameter: Parameter, number: int) -> Any:
    create_trial = import_optuna().trial.create_trial
    distribution = parameter.distribution
    chosen, is_there = None, False
    try:
        chosen = parameter.choice_of(value)
        # It refuses what the distribution does not have.
        create_trial(params={name: chosen}, distributions={name: distribution}, value=0.0)
        is_there = _is_near(parameter.value_of(chosen), value)
    except (LookupError, TypeError, ValueError):
        pass
    if not is_there:
        raise ConfigError(
            f"points_to_evaluate[{number}] has {name}={shown(value)}, which param_space does not "
            f"have: Optuna chooses from {distribution}."
        )
    return chosen


def _is_near(one: Any, other: Any) -> bool:
    if isinstance(one, float) and is_number(other):
        # 3 * 0.1 is more than 0.3.
        return math.isclose(one, other)
    return bool(one == other) or is_same(one, other)


def by_path(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield all that a configuration holds by its path, containers included. Not collective."""
    for key, item in children(value):
        yield show_path((*path, key)), item
        yield from by_path(item, (*path, key))
