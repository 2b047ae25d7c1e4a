"""A `LiveView` as HTML for a notebook. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from hpctrain.rundir.html import render_run
from hpctrain.rundir.live_text import RANK_COLUMNS, page_rows, rank_line
from hpctrain.rundir.live_view import LiveView

_NUM_RANKS = 10
_WIDTH = 100
# They have places of their own.
_LEFT_OUT = ("metrics", "error")


def render_live(view: LiveView) -> str:
    """Return a run at one moment as HTML: its state, its curves and its slowest ranks.

    Not collective. It is complete in itself, without a script, and all text is escaped.
    """
    rows = [(key, value) for key, value in page_rows(view) if key not in _LEFT_OUT]
    facts = {key: "; ".join(v for k, v in rows if k == key) for key, _ in rows}
    return render_run(
        name=view.name,
        state=view.shown_state,
        facts=facts,
        history=[report.metrics for report in view.history],
        numbers=[report.number for report in view.history],
        error=view.status.error,
    ) + _ranks(view, view.order(slowest_first=True)[:_NUM_RANKS])


def _ranks(view: LiveView, ranks: Sequence[int]) -> str:
    if not ranks or not view.is_at_work:
        return ""
    lines = [RANK_COLUMNS, *(rank_line(view, rank, width=_WIDTH) for rank in ranks)]
    style = "white-space:pre;font-family:monospace;line-height:1.2"
    return f'<div style="{style}">{escape(chr(10).join(lines))}</div>'
