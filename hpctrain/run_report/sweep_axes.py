"""Axes of parallel coordinates: where each value of a parameter stands on one. Pure."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hpctrain.metric_names import as_finite, is_number
from hpctrain.rundir.display import shorten

_LOGARITHMIC_FROM = 100.0
_MIDDLE = 5
_MOST_TICKS = 6
_MOST_LABELS = 10
_LONGEST_LABEL = 18


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A parameter, or the metric."""

    name: str
    scale: str
    """``linear``, ``logarithmic`` or ``categories``."""
    ticks: tuple[tuple[float, str], ...]
    """Positions, from 0 at the bottom to 1 at the top, and what stands there."""
    positions: tuple[float | None, ...]
    """Of each trial; None if it has no value that can be drawn."""


def make_axis(name: str, values: Sequence[Any]) -> Axis:
    """Return the axis of values, one for each trial. Not collective.

    Numbers are on a logarithmic axis if all are positive, the largest is 100 times the smallest and
    5 times the median. If one value is no number, all are categories, in the order in which they
    appear.

    Parameters
    ----------
    values
        None for a trial that has none.
    """
    present = [value for value in values if value is not None]
    if not all(is_number(value) for value in present):
        return _categories(name, values)
    numbers = [None if value is None else as_finite(value) for value in values]
    finite = [number for number in numbers if number is not None]
    if not finite:
        return Axis(name=name, scale="linear", ticks=(), positions=(None,) * len(values))
    low, high = min(finite), max(finite)
    # Of two decades that are filled evenly, half of the values are below a tenth of the largest.
    middle = statistics.median_low(finite)
    is_logarithmic = low > 0 and high / low >= _LOGARITHMIC_FROM and middle <= high / _MIDDLE
    if is_logarithmic:
        begin, end = math.log10(low), math.log10(high)
        marks = [10.0**n for n in _decades(begin, end)] or [low, high]
    else:
        begin, end = low, high
        marks = _round_numbers(low, high)

    def place(number: float) -> float:
        at = math.log10(number) if is_logarithmic else number
        # Halves: the difference of the largest floats is not finite.
        span = end / 2 - begin / 2
        return (at / 2 - begin / 2) / span if span else 0.5

    return Axis(
        name=name,
        scale="logarithmic" if is_logarithmic else "linear",
        ticks=tuple((place(mark), f"{mark:.4g}") for mark in marks),
        positions=tuple(None if number is None else place(number) for number in numbers),
    )


def differing(configs: Sequence[dict[str, Any]]) -> list[str]:
    """Return the parameters that are not the same in all trials. Not collective."""
    names = dict.fromkeys(name for config in configs for name in config)
    return [
        name
        for name in names
        if len({_text(config[name]) if name in config else None for config in configs}) > 1
    ]


def _categories(name: str, values: Sequence[Any]) -> Axis:
    texts = [None if value is None else _text(value) for value in values]
    known = list(dict.fromkeys(text for text in texts if text is not None))
    last = len(known) - 1
    places = {text: n / last if last else 0.5 for n, text in enumerate(known)}
    step = math.ceil(len(known) / _MOST_LABELS)
    return Axis(
        name=name,
        scale="categories",
        ticks=tuple((places[text], shorten(text, _LONGEST_LABEL)) for text in known[::step]),
        positions=tuple(None if text is None else places[text] for text in texts),
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _decades(begin: float, end: float) -> list[int]:
    found = list(range(math.ceil(begin), math.floor(end) + 1))
    return found[:: math.ceil(len(found) / _MOST_TICKS)] if found else []


def _round_numbers(low: float, high: float) -> list[float]:
    """Return multiples of 1, 2 or 5 times a power of ten between two numbers."""
    span = high / 2 - low / 2
    if not span:
        return [low]
    power = 10.0 ** math.floor(math.log10(span))
    if not power:
        return [low, high]
    step = next((f * power for f in (0.5, 1, 2, 5) if span / (f * power) <= 2.5), 5 * power)
    if not step or low / step == low / step + 1:
        # So close to each other that no number is between them.
        return [low, high]
    first, last = math.ceil(low / step), math.floor(high / step)
    return [n * step for n in range(first, last + 1)][: 2 * _MOST_TICKS]
