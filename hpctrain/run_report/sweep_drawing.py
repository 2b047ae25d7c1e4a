"""What is drawn on a page about a sweep: parallel coordinates, and its curves. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from hpctrain.printable import show_controls
from hpctrain.run_report.chart_data import can_be_drawn, points_of, short, to_json
from hpctrain.run_report.markup import Html, format_number, to_html
from hpctrain.run_report.sweep_axes import Axis, differing, make_axis
from hpctrain.run_report.sweep_facts import SweepFacts, TrialFacts
from hpctrain.rundir.display import shorten

MOST_AXES = 12
"""Further parameters are in the table alone."""
_POINTS_OF_A_PAGE = 150_000
_FEWEST_POINTS = 30
_MOST_POINTS = 1000
# Of those that have no value on an axis, on which all others are between 0 and 1.
_WITHOUT = -0.13
_FIRST = 0.1
_MOST_OPAQUE, _FAINTEST = 40, 0.15
_LONGEST_LINE, _MOST_LINES = 18, 3


def choose_axes(sweep: SweepFacts, trials: Sequence[TrialFacts]) -> list[Axis]:
    """Return the parameters that differ between trials, and the metric. Not collective."""
    configs = [dict(trial.config) for trial in trials]
    axes = [
        make_axis(name, [config.get(name) for config in configs])
        for name in differing(configs)[:MOST_AXES]
    ]
    if sweep.metric is not None:
        axes.append(make_axis(sweep.metric, [trial.score for trial in trials]))
    return axes


def parallel(sweep: SweepFacts, trials: Sequence[TrialFacts], axes: Sequence[Axis]) -> Html:
    """Return the place of the parallel coordinates, and what their colours mean.

    Not collective.
    """
    shown = to_html(f"Configuration and {sweep.metric or 'no metric'} of each trial")
    label = f"{shown}, on {len(axes)} axes; the values are in the table of trials"
    return Html(
        f'<figure class="chart parallel"><figcaption>{shown}</figcaption><div class="scroll">'
        f'<div class="plot" style="--count:{len(axes)}" tabindex="0" role="group" '
        f'aria-label="{label}"></div></div><p class="nearest" aria-live="polite"></p>'
        f"{_key(sweep, trials)}</figure>"
    )


def _key(sweep: SweepFacts, trials: Sequence[TrialFacts]) -> str:
    entries: list[tuple[str, str]] = []
    num_first = _count_first(sweep)
    if (best := sweep.best) is not None:
        entries.append(("best", f"{to_html(best.name)}, the best"))
        if num_first > 1:
            entries.append(("first", f"the next {num_first - 1}"))
        if len(sweep.ranking) > num_first:
            entries.append(("other", "others"))
    if len(trials) > len(sweep.ranking):
        entries.append(("none", "without a value of the metric"))
    shown = "".join(
        f'<span class="entry"><span class="key {kind}"></span>{what}</span> '
        for kind, what in entries
    )
    return f"<p>{shown}</p>" if shown else ""


def _count_first(sweep: SweepFacts) -> int:
    """Return how many trials are the best ones."""
    return max(1, round(_FIRST * len(sweep.ranking)))


def make_parallel_data(
    sweep: SweepFacts, trials: Sequence[TrialFacts], axes: Sequence[Axis]
) -> dict[str, Any]:
    """Return a line for each trial through its values on all axes, as JSON values.

    Not collective.
    """
    ranks = {trial.name: rank for rank, trial in enumerate(sweep.ranking)}
    num_first = _count_first(sweep)
    lines = []
    # The best are drawn last, over the others.
    for n in sorted(range(len(trials)), key=lambda n: -ranks.get(trials[n].name, len(trials))):
        rank, score = ranks.get(trials[n].name), trials[n].score
        kind = "none" if rank is None else "other"
        if sweep.mode is not None and rank is not None:
            kind = "best" if rank == 0 else "first" if rank < num_first else kind
        heights = [_height(axis.positions[n]) for axis in axes]
        shown = None if score is None else format_number(score)
        lines.append({"run": n, "kind": kind, "y": heights, "value": shown})
    drawn = [
        {
            "lines": _wrap(axis),
            "ticks": [
                *((_height(at), text) for at, text in axis.ticks),
                *([(_WITHOUT, "none")] if None in axis.positions else []),
            ],
        }
        for axis in axes
    ]
    # Where hundreds of lines lie over each other, it is seen where they are dense.
    kinds = [line["kind"] for line in lines]
    opaque = {
        kind: round(min(1.0, max(_FAINTEST, _MOST_OPAQUE / kinds.count(kind))), 2)
        for kind in ("none", "other", "first")
        if kind in kinds
    }
    return {"axes": drawn, "lowest": _WITHOUT, "opaque": opaque, "series": lines}


def _height(position: float | None) -> float:
    return _WITHOUT if position is None else round(position, 4)


def _wrap(axis: Axis) -> list[str]:
    """Return what is written at an axis, line by line."""
    name = shorten(show_controls(axis.name), _LONGEST_LINE * _MOST_LINES)
    lines = textwrap.wrap(name, _LONGEST_LINE, break_on_hyphens=False)[:_MOST_LINES]
    return lines if axis.scale == "linear" else [*lines, axis.scale]


def make_sweep_data(sweep: SweepFacts, trials: Sequence[TrialFacts], axes: Sequence[Axis]) -> str:
    """Return what is drawn, as JSON: parallel coordinates, curves, and the best value so far.

    Not collective. What a page has in all is bounded, however many trials there are.
    """
    best = None if sweep.best is None else sweep.best.name
    drawn = [n for n, trial in enumerate(trials) if can_be_drawn(trial.curve)]
    # The last one is drawn over the others.
    drawn.sort(key=lambda n: trials[n].name == best)
    most = max(_FEWEST_POINTS, min(_MOST_POINTS, _POINTS_OF_A_PAGE // max(1, len(drawn))))
    names = [trial.name for trial in trials]
    charts: list[dict[str, Any]] = []
    if drawn:
        charts.append(
            {
                "x": "report",
                "best": names.index(best) if best in names else -1,
                "series": [points_of(n, trials[n].curve, most) for n in drawn],
            }
        )
    if improvements := sweep.improvements:
        # The last value holds until the end.
        until = max(0.0, sweep.until - sweep.began_at)
        last_at, last_value, _ = improvements[-1]
        rows = [(at, value) for at, value, _ in improvements]
        rows += [(until, last_value)] if until > last_at else []
        charts.append(
            {
                "x": "seconds",
                "best": len(names),
                "stepped": True,
                "series": [
                    {
                        "run": len(names),
                        "x": [short(at) for at, _ in rows],
                        "y": [short(value) for _, value in rows],
                    }
                ],
            }
        )
    parallel = make_parallel_data(sweep, trials, axes)
    return to_json({"labels": [*names, "best so far"], "charts": charts, "parallel": parallel})
