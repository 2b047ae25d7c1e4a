"""Names and numbers of metrics: the only module that interprets a name such as ``val/loss``.

Retention, the stop rule, `hpctrain.Result` and early stopping all look up metrics here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

COUNTED = (
    "training_iteration",
    "iterations_since_restore",
    "time_total_s",
    "time_since_restore",
)
"""Metrics that Ray Train adds to each report: a stop criterion may name them, and no report needs
them. The number of the report and the seconds of all attempts, in the run and in the attempt."""

DONE = "done"
"""Ray Tune's metric of whether a trial has ended: a stop criterion may name it, and no report needs
it."""

_NAMES_SHOWN = 12


class PartialMetrics(dict[str, Any]):
    """Metrics of a report before all are measured: later reports may have more names.

    Parameters
    ----------
    metrics
        The metrics.
    lacks
        Prefix of the names that may come later; the empty string for all names.
    """

    def __init__(self, metrics: Mapping[str, Any], lacks: str = "") -> None:
        super().__init__(metrics)
        self.lacks = lacks


def find_metric(metrics: Mapping[str, Any], name: str, default: Any = None) -> Any:
    """Return the metric of a name, or `default`.

    Not collective. The literal name comes first; then ``/`` separates keys of nested mappings.

    Examples
    --------
    >>> find_metric({"val/loss": 1.0, "val": {"loss": 2.0}}, "val/loss")
    1.0
    >>> find_metric({"val": {"loss": 2.0}}, "val/loss")
    2.0
    """
    if name in metrics:
        return metrics[name]
    for end, character in enumerate(name):
        inside = metrics.get(name[:end]) if character == "/" else None
        if isinstance(inside, Mapping):
            found = find_metric(inside, name[end + 1 :], _MISSING)
            if found is not _MISSING:
                return found
    return default


def has_metric(metrics: Mapping[str, Any], name: str) -> bool:
    """Return whether there is a metric of a name, with any value. Not collective."""
    return find_metric(metrics, name, _MISSING) is not _MISSING


def is_number(value: object) -> bool:
    """Return whether the value of a metric is a number, NaN included; true is none. Pure."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def as_float(value: float) -> float:
    """Return a number as a float; an integer that is too large for one is infinite. Pure."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def as_finite(value: float) -> float | None:
    """Return a number as a float; None if that is not finite. Pure."""
    number = as_float(value)
    return number if math.isfinite(number) else None


def find_number(metrics: Mapping[str, Any], name: str) -> float | None:
    """Return the metric of a name if it is a number, NaN included; a bool counts as 0 or 1.

    Not collective. An integer has no largest value: not every one fits into a float.
    """
    value = find_metric(metrics, name)
    return value if isinstance(value, (int, float)) else None


def find_score(metrics: Mapping[str, Any], name: str) -> float | None:
    """Return the metric of a name if it is a finite number. Not collective."""
    value = find_number(metrics, name)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def find_float(metrics: Mapping[str, Any], name: str) -> float | None:
    """Return the metric of a name if it is a finite number that a float holds, as a float.

    Not collective.
    """
    value = find_number(metrics, name)
    return None if value is None else as_finite(value)


def find_score_of(metrics: Mapping[str, Any], name: str, *, report: int) -> float | None:
    """Return the score of a checkpoint; ``training_iteration`` is the number of its report.

    Not collective. A metric of that name comes first.
    """
    if name == COUNTED[0] and not has_metric(metrics, name):
        return report
    return find_score(metrics, name)


def flatten(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested mappings as one, with the names and values of `find_metric`. Not collective.

    Examples
    --------
    >>> flatten({"loss": 1.0, "val": {"loss": 2.0}})
    {'loss': 1.0, 'val/loss': 2.0}
    """
    # Keys of a configuration need not be texts: those, no lookup by name finds.
    return {name: find_metric(metrics, name, value) for name, value in _leaves(metrics, "")}


def _leaves(metrics: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in metrics.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", value


def explain_unknown(name: str, known: Iterable[str]) -> str:
    """Return the list of names, and the one that was probably meant. Not collective.

    Examples
    --------
    >>> explain_unknown("acuracy", ["loss", "accuracy"])
    "The metrics are accuracy, loss. Did you mean 'accuracy'?"
    """
    import difflib

    names = sorted(set(known))
    if not names:
        return "There are no metrics."
    others = f" and {len(names) - _NAMES_SHOWN} others" if len(names) > _NAMES_SHOWN else ""
    close = difflib.get_close_matches(name, names, n=1) or [
        candidate for candidate in names if candidate.rpartition("/")[2] == name.rpartition("/")[2]
    ]
    meant = f" Did you mean {close[0]!r}?" if close else ""
    # Logs and tables have the first line of an error.
    listed = [each if each.isprintable() else repr(each) for each in names[:_NAMES_SHOWN]]
    return f"The metrics are {', '.join(listed)}{others}.{meant}"


_MISSING = object()
