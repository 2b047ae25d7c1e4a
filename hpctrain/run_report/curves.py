"""Metrics as curves of a bounded number of points. Pure."""

from __future__ import annotations

import functools
import math
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hpctrain.metric_names import as_float, flatten, is_number
from hpctrain.rundir.display import format_value

MOST_POINTS = 2000
"""Of a curve. A screen has no more columns."""
_POINTS_OF_A_PAGE = 400_000
_FEWEST_POINTS = 60
# The smallest and the largest value of a bucket, and one that is not finite.
_POINTS_OF_A_BUCKET = 3


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A metric over the reports."""

    name: str
    """Path of the metric: ``val/loss`` of ``{"val": {"loss": 1}}``."""
    reports: array[int] = field(default_factory=lambda: array("q"))
    """Numbers of the reports that have a number for it."""
    values: array[float] = field(default_factory=lambda: array("d"))
    """These numbers; NaN and infinities are among them."""

    @functools.cached_property
    def num_not_finite(self) -> int:
        """How many values are NaN or infinite."""
        return len(self.values) - sum(map(math.isfinite, self.values))

    @property
    def last(self) -> float | None:
        """The last value; None if it is not finite."""
        return self.values[-1] if math.isfinite(self.values[-1]) else None

    @functools.cached_property
    def least(self) -> tuple[int, float] | None:
        """Report and value of the minimum; None without a finite value."""
        return self._first_of(min)

    @functools.cached_property
    def most(self) -> tuple[int, float] | None:
        """Report and value of the maximum; None without a finite value."""
        return self._first_of(max)

    def _first_of(self, choose: Callable[..., float | None]) -> tuple[int, float] | None:
        found = choose(filter(math.isfinite, self.values), default=None)
        return None if found is None else (self.reports[self.values.index(found)], found)


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """All metrics of a run."""

    curves: tuple[Curve, ...] = ()
    """Those that are numbers, in the order in which they first appear."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """The last value of those that are something else at least once, as text."""


def read_metrics(reports: Iterable[Mapping[str, Any]]) -> Metrics:
    """Return the metrics of reports. Not collective.

    Parameters
    ----------
    reports
        As `hpctrain.rundir.metrics.latest_reports` returns them.
    """
    curves: dict[str, Curve] = {}
    texts: dict[str, str] = {}
    for report in reports:
        for name, value in flatten(report["metrics"]).items():
            if not is_number(value):
                texts[name] = format_value(value, longest=200)
                continue
            if (curve := curves.get(name)) is None:
                curve = curves[name] = Curve(name=name)
            curve.reports.append(report["report"])
            curve.values.append(as_float(value))
    return Metrics(curves=tuple(curves.values()), texts=texts)


def thin(
    x: Sequence[float], y: Sequence[float], *, most: int = MOST_POINTS
) -> list[tuple[float, float | None]]:
    """Return at most `most` points of a curve, in order. Not collective.

    All points if there are no more. Otherwise the first and the last one and, of each of as many
    buckets as there is room for, those of the smallest and of the largest value, and the first one
    that is not finite. A value that is not finite is None.

    Parameters
    ----------
    x, y
        Of the points.
    most
        At least 5.
    """
    if len(x) <= most:
        chosen: Iterable[int] = range(len(x))
    else:
        num_buckets = (most - 2) // _POINTS_OF_A_BUCKET
        kept = {0, len(x) - 1}
        for bucket in range(num_buckets):
            begin, end = (len(x) * n // num_buckets for n in (bucket, bucket + 1))
            kept.update(_extremes(y, range(begin, end)))
        chosen = sorted(kept)
    return [(x[n], y[n] if math.isfinite(y[n]) else None) for n in chosen]


def points_of_each(num_curves: int) -> int:
    """Return how many points a curve of a page has at most. Not collective.

    Examples
    --------
    >>> points_of_each(10), points_of_each(1000)
    (2000, 400)
    """
    return max(_FEWEST_POINTS, min(MOST_POINTS, _POINTS_OF_A_PAGE // max(1, num_curves)))


def _extremes(y: Sequence[float], places: range) -> set[int]:
    finite = [n for n in places if math.isfinite(y[n])]
    found = set()
    if finite:
        found = {min(finite, key=y.__getitem__), max(finite, key=y.__getitem__)}
    if len(finite) < len(places):
        found.add(next(n for n in places if not math.isfinite(y[n])))
    return found
