"""`TrialFunction`: a function of the user's as Ray Tune calls it: what it returns is a report."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hpctrain.checks import is_number, plain_number
from hpctrain.log import log
from hpctrain.worker.context import get_context, report

RETURNED = "_metric"
"""Ray Tune's name for a number that a function returns."""


@dataclass(frozen=True)
class TrialFunction:
    """Calls a function, and reports what it returns as its last report."""

    function: Callable[..., Any]

    def __repr__(self) -> str:
        """Return that of the function: errors show it."""
        return repr(self.function)

    def __getattr__(self, name: str) -> Any:
        """Return the name of the function, and the function itself to what inspects this one."""
        if name == "__name__":
            return name_function(self.function)
        if name == "__wrapped__":
            return self.function
        raise AttributeError(name)

    def __call__(self, *arguments: Any) -> Any:
        """Call the function on this rank, and report what it returns.

        Not collective, but every rank has to return metrics, or none.
        """
        returned = self.function(*arguments)
        metrics = find_metrics(returned)
        if metrics is not None:
            report(metrics)
        elif returned is not None and get_context().get_world_rank() == 0:
            name, kind = name_function(self.function), type(returned).__name__
            log(
                f"warning: {name}() returned a {kind}, which is not reported. A dict of metrics, "
                f"or a number, would be its last report."
            )
        return returned


def find_metrics(returned: Any) -> Mapping[str, Any] | None:
    """Return what a function's return value reports, as Ray Tune reads it; None if nothing.

    Pure.

    Examples
    --------
    >>> find_metrics({"loss": 1.0}), find_metrics(0.5), find_metrics({}), find_metrics("done")
    ({'loss': 1.0}, {'_metric': 0.5}, None, None)
    """
    if isinstance(returned, Mapping):
        return returned or None
    number = plain_number(returned)
    return {RETURNED: number} if is_number(number) else None


def name_function(function: Any) -> str:
    """Return the name of a function, also of one with some of its arguments. Not collective."""
    while isinstance(function, functools.partial):
        function = function.func
    return str(getattr(function, "__name__", type(function).__name__))
