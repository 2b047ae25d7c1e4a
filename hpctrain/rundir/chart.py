"""A curve as lines of text. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_LABEL_WIDTH = 10


def draw_chart(points: Sequence[tuple[float, float]], *, width: int, height: int) -> list[str]:
    """Return a curve as so many lines, with its largest and smallest value beside it.

    Not collective. Several points in a column are averaged, and a column without one is that
    before it.

    Parameters
    ----------
    points
        ``x`` and ``y``, by ``x``; what is not finite is left out.
    width
        Columns, the labels included.
    height
        Lines.

    Examples
    --------
    >>> for line in draw_chart([(0, 1.0), (1, 2.0), (2, 3.0)], width=14, height=2):
    ...     print(line)
             3   █
             1 ▁██
    """
    points = [(x, y) for x, y in points if math.isfinite(y)]
    room = width - _LABEL_WIDTH - 1
    if not points or room < 1 or height < 1:
        return []
    columns = _columns(points, min(room, _num_distinct(points)))
    least, most = min(columns), max(columns)
    # Each half by itself: the difference of two large numbers may not be finite.
    span = most / 2 - least / 2
    levels = [
        round(1 + (y / 2 - least / 2) / span * (height * 8 - 1)) if span else height * 4
        for y in columns
    ]
    labels = {height - 1: least, 0: most} if height > 1 else {0: columns[-1]}
    return [
        f"{_label(labels.get(line)):>{_LABEL_WIDTH}} "
        + "".join(_EIGHTHS[min(8, max(0, level - (height - 1 - line) * 8))] for level in levels)
        for line in range(height)
    ]


def _label(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _num_distinct(points: Sequence[tuple[float, float]]) -> int:
    return len({x for x, _ in points})


def _columns(points: Sequence[tuple[float, float]], count: int) -> list[float]:
    first, last = points[0][0], points[-1][0]
    found: list[list[float]] = [[] for _ in range(count)]
    for x, y in points:
        share = (x - first) / (last - first) if last > first else 0.0
        found[min(count - 1, int(share * count))].append(y)
    columns: list[float] = []
    for values in found:
        mean = sum(y / len(values) for y in values) if values else columns[-1]
        columns.append(mean)
    return columns
