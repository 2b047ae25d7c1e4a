"""The drawings of a page about a sweep: parallel coordinates, and the data of its curves. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpctrain.run_report.chart_data import can_be_drawn, points_of, short, to_json
from hpctrain.run_report.markup import Html, format_number, to_html
from hpctrain.run_report.sweep_axes import Axis, differing, make_axis
from hpctrain.run_report.sweep_facts import SweepFacts, TrialFacts

MOST_AXES = 12
"""Further parameters are in the table alone."""
_POINTS_OF_A_PAGE = 150_000
_FEWEST_POINTS = 30
_MOST_POINTS = 1000
# Between the lowest value and those that have none.
_TOP, _BOTTOM, _WITHOUT = 0.02, 0.88, 1.0
_FIRST = 0.1
_MOST_OPAQUE, _FAINTEST = 80, 0.15


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
    """Return a line for each trial through its values on all axes. Not collective.

    It is drawn here, and not by a script, so that it is there without one, and when it is printed.
    """
    last = max(1, len(axes) - 1)
    # The best are drawn last, over the others.
    ranks = {trial.name: rank for rank, trial in enumerate(sweep.ranking)}
    order = sorted(range(len(trials)), key=lambda n: -ranks.get(trials[n].name, len(trials)))
    num_first = max(1, round(_FIRST * len(sweep.ranking)))
    lines = []
    for n in order:
        trial = trials[n]
        points = [
            f"{1000 * place / last:.0f} {1000 * _height(axis.positions[n]):.0f}"
            for place, axis in enumerate(axes)
        ]
        rank = ranks.get(trial.name)
        kind = "none" if rank is None else ""
        if sweep.mode is not None and rank is not None:
            kind = "best" if rank == 0 else "first" if rank < num_first else ""
        score = "" if trial.score is None else f": {format_number(trial.score)}"
        style = f' class="{kind}"' if kind else ""
        lines.append(
            f'<path{style} d="M{"L".join(points)}">'
            f"<title>{to_html(trial.name)}{score}</title></path>"
        )
    # Where hundreds of lines lie over each other, it is seen where they are dense.
    faint = min(1.0, max(_FAINTEST, _MOST_OPAQUE / max(1, len(trials))))
    drawn = "".join(_draw_axis(axis, place / last) for place, axis in enumerate(axes))
    label = to_html(
        f"Configuration and {sweep.metric or 'no metric'} of {len(trials)} trials as lines through "
        f"{len(axes)} axes; the values are in the table of trials"
    )
    return Html(
        f'<figure class="parallel"><div class="scroll" role="region" tabindex="0" '
        f'aria-label="{label}"><div class="axes" style="--count:{len(axes)};--faint:{faint:.2f}">'
        f'<svg viewBox="0 0 1000 1000" preserveAspectRatio="none" aria-hidden="true">'
        f"{''.join(lines)}</svg>{drawn}</div></div>{_key(sweep, num_first, trials)}</figure>"
    )


def _key(sweep: SweepFacts, num_first: int, trials: Sequence[TrialFacts]) -> str:
    parts = []
    if (best := sweep.best) is not None:
        parts.append(f'<span class="key best"></span>{to_html(best.name)}, the best')
        if num_first > 1:
            parts.append(f'<span class="key first"></span>the next {num_first - 1}')
    if len(sweep.ranking) > num_first or sweep.best is None:
        parts.append('<span class="key"></span>others' if parts else "")
    if len(trials) > len(sweep.ranking):
        parts.append('<span class="key none"></span>without a value of the metric')
    return f"<figcaption>{' &nbsp; '.join(filter(None, parts))}</figcaption>" if parts else ""


def _draw_axis(axis: Axis, place: float) -> str:
    ticks = list(axis.ticks)
    marks = "".join(
        f'<span class="tick" style="top:{100 * _height(at):.2f}%">{to_html(text)}</span>'
        for at, text in ticks
    )
    if None in axis.positions:
        marks += f'<span class="tick" style="top:{100 * _WITHOUT:.0f}%">none</span>'
    scale = "" if axis.scale == "linear" else f"<i>{axis.scale}</i>"
    return (
        f'<div class="axis" style="left:{100 * place:.3f}%"><b>{to_html(axis.name)}{scale}</b>'
        f"{marks}</div>"
    )


def _height(position: float | None) -> float:
    """Return the distance from the top, of 1, of a position on an axis."""
    return _WITHOUT if position is None else _BOTTOM - position * (_BOTTOM - _TOP)


def make_sweep_data(sweep: SweepFacts, trials: Sequence[TrialFacts]) -> str:
    """Return the points of the curves of trials, and of the best value so far, as JSON.

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
    return to_json({"labels": [*names, "best so far"], "charts": charts})
