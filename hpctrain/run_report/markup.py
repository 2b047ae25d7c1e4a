"""HTML of unchecked text: tables, lists of facts, bars. Pure."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import pairwise

from hpctrain.printable import show_controls

UNKNOWN = "not known"
"""Stands for what no file contains."""
# Of a value that has a line of its own.
_LONG = 100


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


Cell = str | Html | int | float | None
"""Of a table; None is `UNKNOWN`."""


def to_html(value: Cell) -> Html:
    r"""Return a value as HTML: escaped, unless it is `Html`. Not collective.

    Examples
    --------
    >>> to_html('<b>"\x00"')
    '&lt;b&gt;&quot;\\x00&quot;'
    """
    if isinstance(value, Html):
        return value
    if value is None:
        return Html(f'<span class="unknown">{UNKNOWN}</span>')
    return Html(escape(show_controls(str(value))))


def table(
    caption: str,
    columns: Sequence[Cell],
    rows: Iterable[Sequence[Cell]],
    *,
    numeric: Sequence[int] = (),
    style: str = "",
) -> Html:
    """Return a table that scrolls by itself where the window is narrow. Not collective.

    Parameters
    ----------
    caption
        What it shows.
    columns
        The header.
    rows
        Their cells; the first one is the header of its row.
    numeric
        Columns that hold numbers, counted from 0.
    style
        Further classes.
    """

    def row(cells: Sequence[Cell], scope: str) -> str:
        return "".join(
            f'<th scope="{scope}"{kind}>{to_html(cell)}</th>'
            if n == 0 or scope == "col"
            else f"<td{kind}>{to_html(cell)}</td>"
            for n, cell in enumerate(cells)
            for kind in [' class="number"' if n in numeric else ""]
        )

    body = "".join(f"<tr>{row(cells, 'row')}</tr>" for cells in rows)
    label = to_html(caption)
    return Html(
        f'<div class="scroll" role="region" tabindex="0" aria-label="{label}">'
        f'<table class="{style}"><caption>{label}</caption>'
        f"<thead><tr>{row(columns, 'col')}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def tall(content: Html) -> Html:
    """Return a table that scrolls by itself where it has many rows. Not collective."""
    return Html(f'<div class="tall">{content}</div>')


def facts(pairs: Mapping[str, Cell]) -> Html:
    """Return names and values as a list of descriptions. Not collective."""
    rows = ""
    for name, value in pairs.items():
        shown = to_html(value)
        kind = ' class="long"' if len(shown) > _LONG else ""
        rows += f"<div{kind}><dt>{to_html(name)}</dt><dd>{shown}</dd></div>"
    return Html(f'<dl class="facts">{rows}</dl>')


def details(summary: str, content: Html) -> Html:
    """Return what is shown when it is asked for. Not collective."""
    return Html(f"<details><summary>{to_html(summary)}</summary>{content}</details>")


def bar(parts: Iterable[tuple[str, float, float]], label: str) -> Html:
    """Return a bar of coloured parts. Not collective.

    Parameters
    ----------
    parts
        Class of the colour, begin and width of each, in percent of the bar.
    label
        The same in words.
    """
    drawn = "".join(
        f'<span class="use {kind}" style="left:{begin:.3f}%;width:{width:.3f}%"></span>'
        for kind, begin, width in parts
    )
    return Html(f'<div class="bar" role="img" aria-label="{to_html(label)}">{drawn}</div>')


def moment(at: float | None) -> Html:
    """Return a time as the reader's clock showed it, with its zone. Not collective."""
    if at is None:
        return to_html(None)
    local = time.localtime(at)
    exact = time.strftime("%Y-%m-%dT%H:%M:%S%z", local)
    shown = time.strftime("%Y-%m-%d %H:%M:%S", local)
    return Html(f'<time datetime="{exact}">{shown}</time>')


def format_span(seconds: float | None) -> str:
    """Return a time in two units at most. Not collective.

    Examples
    --------
    >>> format_span(0.0421), format_span(75), format_span(7500), format_span(200_000)
    ('0.042 s', '1 min 15 s', '2 h 5 min', '2 d 7 h')
    """
    if seconds is None:
        return UNKNOWN
    if seconds < 59.95:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    whole = round(seconds)
    for (name, length), (smaller, part) in pairwise(units):
        if whole >= length:
            rest = whole % length // part
            return f"{whole // length} {name}" + (f" {rest} {smaller}" if rest else "")
    return f"{whole} s"


def format_number(value: float | None) -> str:
    """Return a number with six digits at most. Not collective."""
    return UNKNOWN if value is None else f"{value:.6g}"


def format_hours(hours: float | None) -> str:
    """Return core-hours or GPU-hours. Not collective.

    Examples
    --------
    >>> format_hours(0.04271), format_hours(588.1), format_hours(166_912.4)
    ('0.04271', '588.1', '166912')
    """
    if hours is None:
        return UNKNOWN
    return f"{hours:.0f}" if hours >= 1000 else f"{hours:.4g}"


def percent(part: float, whole: float) -> str:
    """Return a share in percent. Not collective."""
    return f"{100 * part / whole:.1f}%" if whole else UNKNOWN
