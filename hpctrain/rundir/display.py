"""Metrics, times and names as a terminal shows them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hpctrain.metric_names import flatten

_LONGEST_VALUE = 12
# As long as that of 64 bits, it may be an identity, of which each digit counts.
_LARGEST_INTEGER = 10**20


def format_metrics(
    metrics: Mapping[str, Any], *, most: int | None = None, width: int | None = None
) -> str:
    """Return metrics in one line, and dots where there are more of them.

    Not collective.

    Parameters
    ----------
    metrics
        They may be nested: ``{"val": {"loss": 1}}`` is ``val/loss=1``.
    most
        How many are shown at most; None is all.
    width
        Columns that there are; None is as many as it takes, and texts are whole then. One metric
        is shown, be it shortened.
    """
    longest = None if width is None else _LONGEST_VALUE
    parts = [
        one_line(f"{name}={format_value(value, longest=longest)}")
        for name, value in flatten(metrics).items()
    ]
    shown = parts[:most]
    if width is not None:
        while len(shown) > 1 and len(_join(shown, parts)) > width:
            shown.pop()
        if shown and len(_join(shown, parts)) > width:
            name, _, value = shown[0].rpartition("=")
            return f"{shorten(name, max(3, width - len(value) - 1))}={value}"
    return _join(shown, parts)


def shorten(text: str, width: int) -> str:
    """Return a text with its middle left out if it is longer than `width`. Not collective.

    Examples
    --------
    >>> shorten("resnet50-imagenet-2026-11-24", 16)
    'resnet50…6-11-24'
    """
    if len(text) <= width:
        return text
    end = (width - 1) // 2
    return f"{text[: width - 1 - end]}…{text[len(text) - end :]}"


def format_elapsed(seconds: float) -> str:
    """Return a time as ``3:05``, ``1:02:05`` or, as Slurm does, ``2-01:02:05`` with days.

    Not collective.
    """
    minutes, seconds = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}-{hours:02}:{minutes:02}:{seconds:02}"
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def format_size(num_bytes: float) -> str:
    """Return a size in a suitable unit. Not collective.

    Examples
    --------
    >>> format_size(812), format_size(3_565_158)
    ('812 B', '3.4 MiB')
    """
    size = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:.4g} TiB"


def counted(number: object, name: str) -> str:
    """Return a number of things. Not collective.

    Examples
    --------
    >>> counted(1, "node"), counted(2, "node")
    ('1 node', '2 nodes')
    """
    return f"{number} {name}" if str(number) == "1" else f"{number} {name}s"


def list_ranks(ranks: Sequence[int]) -> str:
    """Return ranks in few letters. Not collective.

    Examples
    --------
    >>> list_ranks([1, 2, 3, 7])
    '1-3,7'
    """
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and parts[-1][-1] == rank - 1:
            parts[-1][1:] = [rank]
        else:
            parts.append([rank])
    return ",".join("-".join(map(str, part)) for part in parts)


def one_line(text: str) -> str:
    """Return a text without what moves a terminal's cursor. Not collective."""
    return "".join(c if c.isprintable() else " " for c in text)


def _join(shown: list[str], parts: list[str]) -> str:
    return "  ".join([*shown, "..."] if len(shown) < len(parts) else shown)


def format_value(value: Any, *, longest: int | None = None) -> str:
    """Return a value of a metric; of a text at most `longest` letters. Not collective."""
    if isinstance(value, int) and abs(value) < _LARGEST_INTEGER:
        return str(value)
    if isinstance(value, (int, float)):
        return format_number(value)
    text = str(value)
    return text if longest is None else shorten(text, longest)


def format_number(value: float) -> str:
    """Return a number with six digits at most, also an integer of any size. Not collective."""
    try:
        return f"{value:.6g}"
    except OverflowError:
        # Python's integers have no largest one.
        from decimal import Decimal

        return f"{Decimal(value):.6g}"
