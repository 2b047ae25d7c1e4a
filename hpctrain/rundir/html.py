"""A run as HTML for a notebook: its state, its curves and its last metrics. Pure.

It is complete in itself, without a script, and all text is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from hpctrain.metric_names import as_finite, flatten, is_number
from hpctrain.rundir.display import format_value, shorten

_MAX_CURVES = 4
_MAX_POINTS = 200
_MAX_ROWS = 20
_MAX_ERROR_LINES = 12
_LONGEST_NAME = 60
# Can be read on white and on black: notebooks are either.
_RED = "#d9363e"
_WIDTH, _HEIGHT = 220.0, 60.0


def render_run(
    *,
    name: str,
    state: str,
    facts: Mapping[str, str],
    history: Sequence[Mapping[str, Any]],
    error: str | None,
    numbers: Sequence[int] | None = None,
) -> str:
    """Return a run as HTML. Not collective.

    Parameters
    ----------
    name, state
        Of the run.
    facts
        Further facts, by their names.
    history
        Metrics of each report, the oldest first.
    error
        Why it failed; None if it did not.
    numbers
        Of these reports; None is 1, 2, ...
    """
    described = "".join(
        f"<div>{escape(key)}: {escape(value)}</div>" for key, value in facts.items()
    )
    parts = [f"<div><b>{escape(name)}</b> {escape(state)}</div>", described]
    if error is not None:
        lines = error.splitlines()[:_MAX_ERROR_LINES]
        shown = escape("\n".join(lines))
        parts.append(f'<pre style="color:{_RED};white-space:pre-wrap">{shown}</pre>')
    curves = _curves(history, range(1, len(history) + 1) if numbers is None else numbers)
    parts += [_draw(metric, curves[metric]) for metric in list(curves)[:_MAX_CURVES]]
    if history:
        parts.append(_table(history[-1]))
    style = "font-family:sans-serif;overflow-wrap:anywhere"
    return f'<div style="{style}">{"".join(parts)}</div>'


def _curves(
    history: Sequence[Mapping[str, Any]], numbers: Sequence[int]
) -> dict[str, list[tuple[int, float]]]:
    """Return the numbers of each metric that has two of them, by the number of the report."""
    stride = max(1, math.ceil(len(history) / _MAX_POINTS))
    curves: dict[str, list[tuple[int, float]]] = {}
    for index, (number, metrics) in enumerate(zip(numbers, history, strict=True), start=1):
        if (len(history) - index) % stride:
            continue
        for metric, value in flatten(metrics).items():
            y = as_finite(value) if is_number(value) else None
            if y is not None:
                curves.setdefault(metric, []).append((number, y))
    return {metric: points for metric, points in curves.items() if len(points) > 1}


def _draw(metric: str, points: Sequence[tuple[int, float]]) -> str:
    least, most = min(y for _, y in points), max(y for _, y in points)
    first, last = points[0][0], points[-1][0]
    # Each half by itself: the difference of two large numbers may not be finite.
    height = (most / 2 - least / 2) or 1.0
    drawn = " ".join(
        f"{(x - first) / (last - first) * _WIDTH:.1f},"
        f"{_HEIGHT - (y / 2 - least / 2) / height * _HEIGHT:.1f}"
        for x, y in points
    )
    label = escape(f"{shorten(metric, _LONGEST_NAME)}: {points[-1][1]:.6g}")
    extent = escape(f"{least:.6g} to {most:.6g}, reports {first} to {last}")
    return (
        f'<div style="display:inline-block;margin:4px 12px 4px 0"><div>{label}</div>'
        f'<svg role="img" width="{_WIDTH:.0f}" height="{_HEIGHT:.0f}" '
        f'viewBox="-2 -2 {_WIDTH + 4:.0f} {_HEIGHT + 4:.0f}">'
        f'<polyline fill="none" stroke="#1f77b4" stroke-width="1.5" points="{drawn}"/></svg>'
        f'<div style="font-size:smaller;color:#777">{extent}</div></div>'
    )


def _table(metrics: Mapping[str, Any]) -> str:
    rows = list(flatten(metrics).items())
    cells = "".join(
        f"<tr><td>{escape(shorten(name, _LONGEST_NAME))}</td>"
        f"<td>{escape(format_value(value, longest=80))}</td></tr>"
        for name, value in rows[:_MAX_ROWS]
    )
    more = f"<div>and {len(rows) - _MAX_ROWS} more</div>" if len(rows) > _MAX_ROWS else ""
    return f"<table><tr><th>metric</th><th>last</th></tr>{cells}</table>{more}"
