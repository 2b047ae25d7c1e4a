"""What a sweep optimizes: the metric, and whether large or small values of it are better."""

from __future__ import annotations

from typing import Protocol

from hpctrain.checks import shown
from hpctrain.errors import ConfigError


class Comparing(Protocol):
    """A scheduler or a search algorithm, which may have a metric and a mode of its own."""

    metric: str | None
    mode: str | None


def set_metric(rule: Comparing, metric: str | None, mode: str | None) -> None:
    """Give a rule the metric and the mode of the TuneConfig, where it has none of its own.

    Not collective.

    Raises
    ------
    ConfigError
        If it has another one, or its class does not construct its base.
    """
    if not hasattr(rule, "metric") or not hasattr(rule, "mode"):
        raise ConfigError(
            f"{type(rule).__name__} has no metric and mode: its __init__() has to begin with "
            f"super().__init__()."
        )
    for name, given in (("metric", metric), ("mode", mode)):
        own = getattr(rule, name)
        if given is not None and own is not None and own != given:
            raise ConfigError(
                f"{name} is {shown(own)} in {type(rule).__name__}, and {shown(given)} in "
                f"TuneConfig. Leave one of them out."
            )
        setattr(rule, name, own if own is not None else given)


def find_comparison(*rules: object) -> tuple[str | None, str | None]:
    """Return the metric and the mode of the first rule that has both, else of the first rule.

    Not collective.

    Parameters
    ----------
    *rules
        The TuneConfig, and what may have a metric and a mode of its own.
    """
    found = [(getattr(rule, "metric", None), getattr(rule, "mode", None)) for rule in rules]
    # A rule of one's own may have something else in these names.
    usable = (each for each in found if isinstance(each[0], str) and each[1] in ("min", "max"))
    return next(usable, found[0])
