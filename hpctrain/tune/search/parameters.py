"""The parameters of a search space as Optuna sees them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpctrain.checks import shown
from hpctrain.errors import ConfigError
from hpctrain.plan import spec
from hpctrain.tune.domains import Categorical, Domain, Float, Integer
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


def convert_space(space: Mapping[str, Any]) -> dict[str, Parameter]:
    """Return the parameters of a search space for Optuna, by path. Not collective.

    Raises
    ------
    ConfigError
        If Optuna has no such distribution, or a value holds further domains.
    """
    return {show_path(p): _convert(show_path(p), domain) for p, domain in find_unresolved(space)}


def _convert(name: str, domain: Domain | dict[str, Any]) -> Parameter:
    distributions = import_optuna().distributions
    if isinstance(domain, Float):
        step = None if domain.log else domain.q
        found = distributions.FloatDistribution(
            domain.lower, domain.upper, log=domain.log, step=step
        )
        if domain.q is None or not domain.log:
            return as_it_is(found)
        # Optuna has no steps on a logarithmic scale.
        return Parameter(distribution=found, value_of=domain.quantize, choice_of=_same)
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
        _check_values(name, values)
        # Optuna takes plain values only, and 1, 1.0 and True are one to it.
        if all(type(value) in _PLAIN for value in values) and len(set(values)) == len(values):
            return as_it_is(distributions.CategoricalDistribution(values))
        return Parameter(
            distribution=distributions.CategoricalDistribution(list(range(len(values)))),
            value_of=lambda chosen: values[chosen],
            choice_of=lambda value: _index_of(value, values),
        )
    raise ConfigError(
        f"OptunaSearch cannot choose {name} from {shown(domain)}. Use choice(), uniform(), "
        f"randint() and their variants, or leave search_alg out."
    )


def _check_values(name: str, values: Sequence[Any]) -> None:
    """Refuse values that hold domains: which parameters there are would depend on the choice."""
    for path, inside in find_unresolved(values):
        raise ConfigError(
            f"OptunaSearch cannot choose {name}: the value {shown(values[path[0]])} holds "
            f"{shown(inside)} itself. For parameters that depend on others, give a function of "
            f"Optuna's trial, and leave {name} out of param_space: OptunaSearch(space=define), "
            f"where define(trial) calls trial.suggest_categorical({name!r}, ...), and if need be "
            f"trial.suggest_float(...). Without search_alg such a choice() is drawn as it is."
        )


def take_space(space: Mapping[str, Any]) -> dict[str, Parameter]:
    """Return the parameters of ``OptunaSearch(space={...})``, by path. Not collective.

    Parameters
    ----------
    space
        Distributions of Optuna and domains of `hpctrain.tune`.

    Raises
    ------
    ConfigError
        If something else is in it, or Optuna has no such distribution.
    """
    base = import_optuna().distributions.BaseDistribution
    parameters: dict[str, Parameter] = {}
    for name, given in space.items():
        if isinstance(given, base):
            parameters[name] = as_it_is(given)
            continue
        inside = dict(find_unresolved({name: given}))
        if not inside or not all(type(key) is str for path in inside for key in path):
            raise ConfigError(
                f"OptunaSearch(space=...) has {name}={shown(given)}, which is neither a "
                f"distribution of Optuna nor a domain such as tune.uniform(0, 1). Put what is "
                f"constant, and lists, into param_space."
            )
        parameters |= convert_space({name: given})
    return parameters


def as_it_is(distribution: Any) -> Parameter:
    """Return the parameter of a distribution of Optuna's. Not collective."""
    return Parameter(distribution=distribution, value_of=_same, choice_of=_same)


def _same(value: Any) -> Any:
    return value


def is_same(one: Any, other: Any) -> bool:
    """Return whether two values are the same, types included, also after pickling.

    Not collective.

    Examples
    --------
    >>> is_same([1], [1]), is_same([1], [True])
    (True, False)
    """
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if type(one) in _PLAIN:
        return bool(one == other)
    # Functions and many objects are equal to themselves only, and arrays to nothing.
    return _digest(one) == _digest(other)


def _index_of(value: Any, values: Sequence[Any]) -> int:
    for index, known in enumerate(values):
        if is_same(known, value):
            return index
    raise LookupError(f"{shown(value)} is none of the choices")


def _digest(value: Any) -> str:
    return spec.make_fingerprint(spec.pack(value, what="a choice"))


def import_optuna() -> Any:
    """Return Optuna. Not collective.

    Raises
    ------
    ConfigError
        If it is not installed.
    """
    try:
        import optuna
    except ImportError as error:
        raise ConfigError("OptunaSearch needs Optuna: pip install 'hpctrain[optuna]'.") from error
    return optuna
