"""What the curves of a page are drawn from, as JSON that is safe inside of a page. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hpctrain.run_report.curves import Curve, points_of_each, thin
from hpctrain.run_report.facts import RunFacts

MOST_CHARTS = 300
"""Further metrics are in the table alone."""
# The axis of larger values would have no finite length.
_LARGEST = 1e300


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One metric of all runs, over each other."""

    name: str
    curves: tuple[Curve | None, ...]
    """Of each run; None if it does not have the metric."""


def choose_charts(runs: Sequence[RunFacts]) -> list[Chart]:
    """Return the metrics of all runs that are drawn, in the order in which they appear.

    Not collective. A metric without a value that can be drawn has no chart.
    """
    of_runs = [{curve.name: curve for curve in run.metrics.curves} for run in runs]
    names = list(dict.fromkeys(name for curves in of_runs for name in curves))
    charts = [
        Chart(name=name, curves=tuple(curves.get(name) for curves in of_runs)) for name in names
    ]
    drawn = (chart for chart in charts if any(map(can_be_drawn, chart.curves)))
    return [chart for _, chart in zip(range(MOST_CHARTS), drawn, strict=False)]


def most_points(charts: Sequence[Chart]) -> int:
    """Return how many points each of the curves has at most. Not collective."""
    return points_of_each(sum(curve is not None for chart in charts for curve in chart.curves))


def make_data(runs: Sequence[RunFacts], labels: Sequence[str], charts: Sequence[Chart]) -> str:
    """Return the points of all charts as JSON. Not collective.

    Parameters
    ----------
    runs, labels
        The runs, and what the legend calls them.
    charts
        As `choose_charts` returns them. The last chart of the page is the throughput.
    """
    most = most_points(charts)
    drawn = [
        {
            "x": "report",
            "series": [points_of(run, c, most) for run, c in enumerate(chart.curves) if c],
        }
        for chart in charts
    ]
    rates = [
        {
            "run": number,
            "x": [short((rate.begin + rate.end) / 2) for rate in run.rates],
            "y": [short(rate.per_s) for rate in run.rates],
        }
        for number, run in enumerate(runs)
        if run.rates
    ]
    if rates:
        drawn.append({"x": "seconds", "series": rates})
    return to_json({"labels": list(labels), "charts": drawn})


def to_json(value: Any) -> str:
    r"""Return a value as JSON that can be the content of a ``script`` element. Not collective.

    Examples
    --------
    >>> to_json("</script><!--")
    '"\\u003c/script\\u003e\\u003c!--"'
    """
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def can_be_drawn(curve: Curve | None) -> bool:
    """Return whether a curve has a value that an axis can show. Not collective."""
    return curve is not None and any(abs(value) <= _LARGEST for value in curve.values)


def points_of(run: int, curve: Curve, most: int) -> dict[str, Any]:
    """Return a curve as the page has it. Not collective.

    Parameters
    ----------
    run
        Number of its label.
    most
        Points that it may have.
    """
    points = thin(curve.reports, curve.values, most=most)
    return {"run": run, "x": [int(x) for x, _ in points], "y": [short(y) for _, y in points]}


def short(value: float | None) -> float | int | None:
    """Return what can be drawn of a number, with no more digits than can be seen.

    Not collective.
    """
    if value is None or abs(value) > _LARGEST:
        return None
    rounded = float(f"{value:.7g}")
    return int(rounded) if rounded.is_integer() and abs(rounded) < 2**53 else rounded
