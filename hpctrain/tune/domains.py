"""The domains of a search space, by Ray Tune's names: what a value is drawn from."""

from __future__ import annotations

import inspect
import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hpctrain.checks import is_number, plain_number, shown
from hpctrain.errors import ConfigError
from hpctrain.unresolved import Unresolved

_RNG = random.Random()
"""Draws for who looks at a domain by hand; a sweep has generators of its own."""


class Domain(Unresolved):
    """What the value of a parameter is drawn from."""

    def sample(self, rng: random.Random | None = None, *, size: int = 1) -> Any:
        """Return a value; of a `size` of more than 1, so many in a list. Not collective.

        Raises
        ------
        ConfigError
            If it is a grid, or a function of the config.
        """
        if size == 1:
            return self._draw(rng or _RNG)
        return [self._draw(rng or _RNG) for _ in range(size)]

    def _draw(self, rng: random.Random) -> Any:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Float(Domain):
    """A number between two bounds."""

    lower: float
    upper: float
    log: bool = False
    """Whether its logarithm is uniform."""
    q: float | None = None
    """The value is a multiple of it."""

    def quantize(self, value: float) -> float:
        """Return the multiple of `q` next to a value, or the value without one. Not collective."""
        if self.q is None:
            return value
        # 3 * 0.1 is more than 0.3.
        return float(min(max(round(value / self.q) * self.q, self.lower), self.upper))

    def _draw(self, rng: random.Random) -> float:
        return self.quantize(_draw_between(rng, self.lower, self.upper, log=self.log))


@dataclass(frozen=True, kw_only=True)
class Integer(Domain):
    """A whole number below `upper`; if `q` is more than 1, `upper` itself may be drawn too."""

    lower: int
    upper: int
    log: bool = False
    """Whether its logarithm is uniform."""
    q: int = 1
    """The value is a multiple of it."""

    def _draw(self, rng: random.Random) -> int:
        first = -(-self.lower // self.q)
        end = self.upper if self.q == 1 else self.upper // self.q + 1
        if self.log:
            # exp(log(x)) can be a little less than x.
            index = min(max(int(_draw_between(rng, first, end, log=True)), first), end - 1)
        else:
            index = rng.randrange(first, end)
        return index * self.q


@dataclass(frozen=True, kw_only=True)
class Normal(Domain):
    """A number of a normal distribution."""

    mean: float
    sd: float
    q: float | None = None
    """The value is a multiple of it."""

    def _draw(self, rng: random.Random) -> float:
        value = rng.gauss(self.mean, self.sd)
        return value if self.q is None else float(round(value / self.q) * self.q)


@dataclass(frozen=True, kw_only=True)
class Categorical(Domain):
    """One of several values, each as likely."""

    categories: Sequence[Any]

    def _draw(self, rng: random.Random) -> Any:
        return self.categories[rng.randrange(len(self.categories))]


@dataclass(frozen=True, kw_only=True)
class Grid(Domain):
    """Each of several values, in combination with each of every other grid."""

    values: Sequence[Any]

    def _draw(self, rng: random.Random) -> Any:
        """Refuse: a grid is not drawn from."""
        raise ConfigError(
            "grid_search(...).sample(): all values of a grid are tried, and none is drawn. Use "
            "choice() for a random one."
        )


@dataclass(frozen=True, kw_only=True)
class Function(Domain):
    """What a function returns, which may be given the values that are there already."""

    func: Callable[..., Any]
    takes_config: bool = field(init=False)

    def __post_init__(self) -> None:
        """Find out how it is called."""
        object.__setattr__(self, "takes_config", _takes_config(self.func))

    def _draw(self, rng: random.Random) -> Any:
        """Refuse, if it is called with the other values."""
        if self.takes_config:
            raise ConfigError(
                f"sample_from({shown(self.func)}).sample(): the function is given the config of a "
                f"trial, and there is none. Call the function itself."
            )
        return self.func()


def uniform(lower: float, upper: float) -> Float:
    """Return the domain of the numbers from `lower` to `upper`. Not collective."""
    return _float("uniform", lower, upper)


def quniform(lower: float, upper: float, q: float) -> Float:
    """Return the domain of the multiples of `q` from `lower` to `upper`. Not collective."""
    return _multiples("quniform", lower, upper, q)


def loguniform(lower: float, upper: float, base: object = None) -> Float:
    """Return the domain of the numbers whose logarithm is uniform. Not collective.

    Parameters
    ----------
    lower, upper
        The bounds.
    base
        Ray Tune's argument, without effect in either: to any base the logarithm is uniform.
    """
    return _float("loguniform", lower, upper, log=True)


def qloguniform(lower: float, upper: float, q: float, base: object = None) -> Float:
    """Return the multiples of `q` in `loguniform`. Not collective."""
    return _multiples("qloguniform", lower, upper, q, log=True)


def randint(lower: int, upper: int) -> Integer:
    """Return the domain of the whole numbers from `lower` to ``upper - 1``. Not collective."""
    return _integer("randint", lower, upper)


def qrandint(lower: int, upper: int, q: int = 1) -> Integer:
    """Return the multiples of `q` from `lower` to `upper`; see `randint`. Not collective.

    As in Ray Tune, `upper` is one of them unless `q` is 1.
    """
    return _integer("qrandint", lower, upper, q)


def lograndint(lower: int, upper: int, base: object = None) -> Integer:
    """Return the whole numbers up to ``upper - 1``, their logarithm uniform. Not collective."""
    return _integer("lograndint", lower, upper, log=True)


def qlograndint(lower: int, upper: int, q: int, base: object = None) -> Integer:
    """Return the multiples of `q` in `lograndint`; see `qrandint`. Not collective."""
    return _integer("qlograndint", lower, upper, q, log=True)


def randn(mean: float = 0.0, sd: float = 1.0) -> Normal:
    """Return the domain of a normal distribution. Not collective."""
    mean, sd = map(plain_number, (mean, sd))
    _check_normal("randn", mean, sd)
    return Normal(mean=mean, sd=sd)


def qrandn(mean: float, sd: float, q: float) -> Normal:
    """Return the domain of a normal distribution, in multiples of `q`. Not collective."""
    mean, sd, q = map(plain_number, (mean, sd, q))
    _check_normal("qrandn", mean, sd)
    _check_step("qrandn", q)
    return Normal(mean=mean, sd=sd, q=q)


def choice(categories: Sequence[Any]) -> Categorical:
    """Return the domain of some values, each as likely. Not collective."""
    return Categorical(categories=_values("choice", categories))


def grid_search(values: Iterable[Any]) -> Grid:
    """Return a grid: each of its values is tried, with each of every other grid.

    Not collective.
    """
    return Grid(values=_values("grid_search", values))


def sample_from(func: Callable[..., Any]) -> Function:
    """Return what a function returns: of no argument, or of the values that are there already.

    Not collective.

    Examples
    --------
    >>> space = {"width": choice([1, 2]), "depth": sample_from(lambda config: 2 * config["width"])}
    """
    return Function(func=func)


def _float(name: str, lower: float, upper: float, *, log: bool = False) -> Float:
    lower, upper = map(plain_number, (lower, upper))
    _check_bounds(name, lower, upper, log=log)
    return Float(lower=lower, upper=upper, log=log)


def _multiples(name: str, lower: float, upper: float, q: float, *, log: bool = False) -> Float:
    domain, q = _float(name, lower, upper, log=log), plain_number(q)
    _check_multiples(name, domain.lower, domain.upper, q)
    return replace(domain, q=q)


def _integer(name: str, lower: int, upper: int, q: int = 1, *, log: bool = False) -> Integer:
    lower, upper, q = map(plain_number, (lower, upper, q))
    _check_integers(name, lower, upper, q=q, log=log)
    return Integer(lower=lower, upper=upper, log=log, q=q)


def _draw_between(rng: random.Random, lower: float, upper: float, *, log: bool) -> float:
    if not log:
        return rng.uniform(lower, upper)
    value = math.exp(rng.uniform(math.log(lower), math.log(upper)))
    return min(max(value, lower), upper)


def _values(name: str, values: Iterable[Any]) -> list[Any]:
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise ConfigError(f"{name}({shown(values)}): a list of values is needed.")
    if isinstance(values, (set, frozenset)):
        raise ConfigError(
            f"{name}({shown(values)}): the values of a set have another order in each process, so "
            f"that a seed would draw others each time. Give a list, such as sorted(...)."
        )
    listed = list(values)
    if not listed:
        raise ConfigError(f"{name}([]) has no values to choose from. Give one or more.")
    return listed


def _check_bounds(name: str, lower: object, upper: object, *, log: bool = False) -> None:
    call = f"{name}({shown(lower)}, {shown(upper)})"
    if not is_number(lower) or not is_number(upper):
        raise ConfigError(f"{call}: two numbers are needed, the lower and the upper bound.")
    if not lower < upper:  # type: ignore[operator]
        raise ConfigError(f"{call}: the lower bound comes first, and is less than the upper one.")
    if log and not lower > 0:  # type: ignore[operator]
        raise ConfigError(f"{call}: only numbers above 0 have a logarithm. Raise the lower bound.")


def _check_step(name: str, q: object) -> None:
    if not is_number(q) or not q > 0:  # type: ignore[operator]
        raise ConfigError(f"{name}(q={shown(q)}): a number above 0 is needed.")


def _check_multiples(name: str, lower: float, upper: float, q: float) -> None:
    _check_step(name, q)
    for bound in (lower, upper):
        if not math.isclose(bound / q, round(bound / q)):
            raise ConfigError(
                f"{name}({lower}, {upper}, q={q}): {bound} is no multiple of {q}. Choose bounds "
                f"that are."
            )


def _check_integers(
    name: str, lower: object, upper: object, *, q: object = 1, log: bool = False
) -> None:
    for value in (lower, upper, q):
        if isinstance(value, bool) or not isinstance(value, int):
            raise ConfigError(f"{name}({shown(lower)}, {shown(upper)}): whole numbers are needed.")
    _check_step(name, q)
    _check_bounds(name, lower, upper, log=log)
    assert isinstance(lower, int)
    assert isinstance(upper, int)
    assert isinstance(q, int)
    if -(-lower // q) > upper // q:
        raise ConfigError(f"{name}({lower}, {upper}, q={q}): no multiple of {q} is between them.")


def _check_normal(name: str, mean: object, sd: object) -> None:
    if not is_number(mean) or not is_number(sd) or not sd > 0:  # type: ignore[operator]
        raise ConfigError(
            f"{name}(mean={shown(mean)}, sd={shown(sd)}): a number, and one above 0, are needed."
        )


def _takes_config(func: object) -> bool:
    if not callable(func):
        raise ConfigError(f"sample_from({shown(func)}): a function is needed.")
    try:
        signature = inspect.signature(func)
    except ValueError:  # of some built-in functions
        return False
    forms: tuple[tuple[Any, ...], ...] = (({},), ())
    for arguments in forms:
        try:
            signature.bind(*arguments)
        except TypeError:
            continue
        return bool(arguments)
    raise ConfigError(
        f"sample_from({shown(func)}): the function takes {signature}. Give one that takes the "
        f"config, or nothing."
    )
