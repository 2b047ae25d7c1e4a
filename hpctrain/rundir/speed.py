"""How fast a run reports, and how far it is from its stop criteria. Pure."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from hpctrain.metric_names import COUNTED, find_float, flatten

_WINDOW_S = 60.0
_LEAST_IN_WINDOW = 5
_UNITS = ("samples", "tokens", "images")
_RATE_ENDINGS = ("_per_second", "_per_s", "_per_sec", "/s", "/sec")
# Names of counts. The end of other metrics, such as an accuracy, cannot be predicted.
_COUNTS = (*_UNITS, "epoch", "step", "iteration", "batch")


@dataclass(frozen=True, kw_only=True)
class Report:
    """A report of rank 0."""

    number: int
    time: float
    metrics: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Goal:
    """One of the stop criteria of a run: it stops once a metric is at least a value."""

    name: str
    target: float
    value: float | None = None
    """Of the last report; None if it has none."""
    left_s: float | None = None
    """Seconds until then at the present rate; None if it does not grow, or is no count."""


@dataclass(frozen=True, kw_only=True)
class Speed:
    """How much a run makes in a second."""

    reports: float | None = None
    samples: float | None = None
    unit: str = "samples"
    """What is counted: ``samples``, ``tokens`` or ``images``, as rank 0 reports it."""


def recent(reports: Sequence[Report]) -> Sequence[Report]:
    """Return the reports of the last minute, and the last five at least. Not collective."""
    if not reports:
        return ()
    first = max(0, len(reports) - _LEAST_IN_WINDOW)
    while first > 0 and reports[-1].time - reports[first - 1].time <= _WINDOW_S:
        first -= 1
    return reports[first:]


def measure_speed(reports: Sequence[Report]) -> Speed:
    """Return how much is made in a second, from reports one after the other. Not collective.

    A metric such as ``samples_per_second`` is taken as it is; one such as ``samples`` or
    ``num_samples``, which grows, is counted.
    """
    if not reports:
        return Speed()
    rate = _slope([(report.time, float(report.number)) for report in reports])
    for name in flatten(reports[-1].metrics):
        last = name.rpartition("/")[2].lower() if not name.lower().endswith("/s") else name.lower()
        for unit in _UNITS:
            if any(last.endswith(f"{unit}{ending}") for ending in _RATE_ENDINGS):
                value = find_float(reports[-1].metrics, name)
                if value is not None and value >= 0:
                    return Speed(reports=rate, samples=value, unit=unit)
    for name in flatten(reports[-1].metrics):
        words = name.rpartition("/")[2].lower().split("_")
        for unit in _UNITS:
            if unit in words and (made := _slope(_series(reports, name))) is not None:
                return Speed(reports=rate, samples=made, unit=unit)
    return Speed(reports=rate)


def read_goals(stop: object) -> dict[str, float]:
    """Return the stop criteria of ``plan.json``, by metric; none of a function. Not collective.

    Parameters
    ----------
    stop
        The text of ``RunConfig(stop=...)``.

    Examples
    --------
    >>> read_goals("{'training_iteration': 100}")
    {'training_iteration': 100.0}
    """
    if not isinstance(stop, str):
        return {}
    try:
        value = ast.literal_eval(stop)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return {}
    if not isinstance(value, dict):
        return {}
    goals = {}
    for name, target in value.items():
        # An int may be larger than any float.
        with suppress(OverflowError):
            if isinstance(name, str) and isinstance(target, (int, float)) and math.isfinite(target):
                goals[name] = float(target)
    return goals


def measure_goals(targets: Mapping[str, float], reports: Sequence[Report]) -> list[Goal]:
    """Return how far the stop criteria are, the one first that is met first. Not collective.

    Parameters
    ----------
    targets
        As `read_goals` returns them.
    reports
        Reports one after the other.
    """
    goals = [_measure_goal(name, target, reports) for name, target in targets.items()]
    return sorted(goals, key=lambda goal: math.inf if goal.left_s is None else goal.left_s)


def _measure_goal(name: str, target: float, reports: Sequence[Report]) -> Goal:
    if not reports:
        return Goal(name=name, target=target)
    if name == COUNTED[0]:
        series = [(report.time, float(report.number)) for report in reports]
    elif name in COUNTED:
        # Counted by the executor alone.
        return Goal(name=name, target=target)
    else:
        series = _series(reports, name)
    if not series:
        return Goal(name=name, target=target)
    value, rate, left_s = series[-1][1], _slope(series), None
    if value >= target:
        left_s = 0.0
    elif rate and (name == COUNTED[0] or any(count in name.lower() for count in _COUNTS)):
        left_s = (target - value) / rate
    return Goal(name=name, target=target, value=value, left_s=left_s)


def _series(reports: Sequence[Report], name: str) -> list[tuple[float, float]]:
    found = ((report.time, find_float(report.metrics, name)) for report in reports)
    return [(time, value) for time, value in found if value is not None]


def _slope(series: Sequence[tuple[float, float]]) -> float | None:
    """Return the growth a second from the first to the last; None if it does not grow."""
    if len(series) < 2:
        return None
    (begin, first), (end, last) = series[0], series[-1]
    rate = (last - first) / (end - begin) if end > begin else 0.0
    return rate if rate > 0 and math.isfinite(rate) else None
