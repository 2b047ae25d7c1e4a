"""The sections of a page about a sweep. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpctrain.run_report.markup import (
    Cell,
    Html,
    bar,
    details,
    facts,
    format_number,
    format_span,
    moment,
    table,
    tall,
    to_html,
)
from hpctrain.run_report.metric_sections import figure, spread
from hpctrain.run_report.sweep_axes import Axis, differing
from hpctrain.run_report.sweep_drawing import MOST_AXES, parallel
from hpctrain.run_report.sweep_facts import Span, SweepFacts, TrialFacts
from hpctrain.rundir.display import format_metrics, format_value

_MOST_IMPROVEMENTS = 100
_LONGEST_REASON = 300


def count_states(trials: Sequence[TrialFacts]) -> str:
    """Return how many trials are in each state, in words. Not collective."""
    states = [trial.trial.state.value for trial in trials]
    return ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))


def overview(sweep: SweepFacts) -> Html:
    """Return the main facts. Not collective."""
    return facts({"directory": sweep.path, **dict(_overview(sweep))})


def _overview(sweep: SweepFacts) -> Iterator[tuple[str, Cell]]:
    if sweep.reason:
        yield "why it ended", sweep.reason
    yield "began", moment(sweep.began_at)
    is_over = sweep.state == "ended"
    yield "ended" if is_over else "last news", moment(sweep.until)
    yield "took" if is_over else "took so far", format_span(sweep.until - sweep.began_at)
    counts = count_states(sweep.trials)
    yield "trials", f"{len(sweep.trials)}: {counts}" if sweep.trials else "none yet"
    yield "metric", f"{sweep.metric or 'none'}{f' ({sweep.mode})' if sweep.mode else ''}"
    if sweep.seed is not None:
        yield "seed", str(sweep.seed)
    if (best := sweep.best) is not None:
        yield "best trial", best.name
        yield f"its {sweep.metric}", format_number(best.score)
        yield "its configuration", format_metrics(best.config) or "-"


def explain_metric(sweep: SweepFacts) -> Html:
    """Return by what trials are compared. Not collective."""
    if sweep.metric is None:
        return Html("<p>No trial has reported a number, so there is nothing to compare.</p>")
    name = to_html(sweep.metric)
    if sweep.mode is None:
        why = "" if sweep.is_metric_chosen else ", the first metric that is a number"
        return Html(
            f"<p>Shown is {name}{why}. Which trial is best is not known: the TuneConfig has no "
            f"metric and mode.</p>"
        )
    better = "smaller" if sweep.mode == "min" else "larger"
    return Html(
        f"<p>Trials are compared by their last {name} that was reported, of which {better} values "
        f"are better, as <code>hpctrain tune best</code> does. Trials whose last value is not "
        f"finite are not compared.</p>"
    )


def configurations(sweep: SweepFacts, trials: Sequence[TrialFacts], axes: Sequence[Axis]) -> Html:
    """Return the parallel coordinates. Not collective."""
    if not trials:
        return Html("<p>There are no trials yet.</p>")
    num_parameters = len(axes) - (sweep.metric is not None)
    if not num_parameters:
        return Html("<p>The configuration is the same in all trials.</p>")
    said = explain_metric(sweep)
    all_names = differing([dict(trial.config) for trial in trials])
    if len(all_names) > MOST_AXES:
        said = Html(
            f"{said}<p>The first {MOST_AXES} of {len(all_names)} parameters that differ have an "
            f"axis.</p>"
        )
    return Html(said + parallel(sweep, trials, axes))


def curves(sweep: SweepFacts, trials: Sequence[TrialFacts], num_charts: int) -> Html:
    """Return the curves of all trials, and the best value over the time. Not collective.

    Parameters
    ----------
    num_charts
        How many there are in the data of the page.
    """
    if not num_charts or sweep.metric is None:
        return Html("<p>There is no value that can be drawn.</p>")
    shown = sweep.best or next(trial for trial in trials if trial.curve.values)
    curve = shown.curve
    values = table(
        f"{sweep.metric} of {shown.name}",
        ["report", "value"],
        [
            [str(curve.reports[n]), format_value(curve.values[n])]
            for n in spread(range(len(curve.values)))
        ],
        numeric=(0, 1),
    )
    figures = [figure(0, f"{sweep.metric} of each trial", "report", values, has_nearest=True)]
    if num_charts > 1:
        kept = sweep.improvements[-_MOST_IMPROVEMENTS:]
        rows: list[list[Cell]] = [
            [f"{at:.4g}", format_number(value), name] for at, value, name in kept
        ]
        columns: list[Cell] = ["seconds", "value", "trial"]
        found = table(f"Best {sweep.metric} so far", columns, rows, numeric=(0, 1))
        label = "seconds since the sweep began"
        figures.append(figure(1, f"best {sweep.metric} so far", label, found))
    said = (
        f"<p>{to_html(sweep.best.name)} is drawn over the others. </p>"
        if sweep.best is not None
        else ""
    )
    return Html(f'{said}<div class="charts">{"".join(figures)}</div>')


def timeline(sweep: SweepFacts, trials: Sequence[TrialFacts]) -> Html:
    """Return when each trial ran. Not collective."""
    rows: list[Sequence[Cell]] = []
    begin, length = sweep.began_at, max(sweep.until - sweep.began_at, 1e-9)
    for trial in trials:
        if not trial.spans:
            continue
        parts: list[tuple[str, float, float]] = []
        for span in trial.spans:
            parts += _parts(span, begin, length, sweep.until)
        took = sum(_end(span, sweep.until) - span.begin for span in trial.spans)
        state = trial.trial.state.value
        label = f"{state}, {format_span(took)}"
        rows.append(
            (trial.name, bar(parts, label), state, format_span(took), moment(trial.spans[0].begin))
        )
    if not rows:
        return Html("<p>No trial has begun yet.</p>")
    columns: list[Cell] = ["trial", Html("when&nbsp;&rarr;"), "state", "took", "began"]
    drawn = table("When each trial ran", columns, rows, numeric=(3,), style="timeline")
    legend = "".join(
        f'<span class="entry"><span class="swatch {kind}"></span>{what}</span> '
        for kind, what in (
            ("training", "runs"),
            ("ending", "was asked to stop"),
            ("lost", "ran, and failed"),
        )
    )
    return Html(f"<p>{legend}</p>{tall(drawn)}")


def _parts(
    span: Span, begin: float, length: float, until: float
) -> Iterator[tuple[str, float, float]]:
    end = _end(span, until)
    middle = end if span.stopped_at is None else min(max(span.stopped_at, span.begin), end)
    for kind, first, last in (
        ("lost" if span.has_failed else "training", span.begin, middle),
        ("ending", middle, end),
    ):
        if last > first or (first == end and kind != "ending"):
            left = 100 * max(0.0, first - begin) / length
            yield kind, min(left, 99.7), max(0.3, 100 * (last - first) / length)


def _end(span: Span, until: float) -> float:
    return max(span.begin, until if span.end is None else span.end)


def all_trials(sweep: SweepFacts, trials: Sequence[TrialFacts]) -> Html:
    """Return the table of trials, the best first. Not collective."""
    if not trials:
        return Html("<p>There are no trials yet.</p>")
    ranked = sweep.ranking if sweep.mode is not None else ()
    ranks = {trial.name: rank for rank, trial in enumerate(ranked)}
    order = sorted(trials, key=lambda trial: ranks.get(trial.name, len(trials)))
    names = differing([dict(trial.config) for trial in trials])[:MOST_AXES]
    columns: list[Cell] = ["trial", "state", "reports"]
    if sweep.metric is not None:
        columns += [sweep.metric, f"{'largest' if sweep.mode == 'max' else 'smallest'}, at report"]
    columns += [*names, "other metrics", "reason"]
    rows = [_row(sweep, trial, names) for trial in order]
    numeric = (2, 3, 4) if sweep.metric is not None else (2,)
    caption = "Trials, the best first" if ranked else "Trials"
    listed = table(caption, columns, rows, numeric=numeric, style="trials")
    same = _same(trials, names)
    return Html(tall(listed) + same)


def _row(sweep: SweepFacts, trial: TrialFacts, names: Sequence[str]) -> list[Cell]:
    is_best = sweep.best is not None and sweep.best.name == trial.name
    name = f"{trial.name} (best)" if is_best else trial.name
    cells: list[Cell] = [name, trial.trial.state.value, str(trial.num_reports)]
    if sweep.metric is not None:
        best, values = trial.best_value(sweep.mode), trial.curve.values
        cells += [
            format_value(values[-1]) if values else "-",
            "-" if best is None else f"{format_number(best[1])}, {best[0]}",
        ]
    cells += [
        format_value(trial.config[name], longest=60) if name in trial.config else "-"
        for name in names
    ]
    others = {name: value for name, value in trial.metrics.items() if name != sweep.metric}
    reason = trial.trial.reason.strip().split("\n")[0]
    return [*cells, format_metrics(others, most=6) or "-", reason[:_LONGEST_REASON] or "-"]


def _same(trials: Sequence[TrialFacts], names: Sequence[str]) -> Html:
    """Return the parameters that have no column."""
    shown = set(names)
    rest = {
        name: value for trial in trials for name, value in trial.config.items() if name not in shown
    }
    varying = set(differing([dict(trial.config) for trial in trials]))
    rows: list[list[Cell]] = [
        [name, "differs" if name in varying else format_value(value, longest=200)]
        for name, value in rest.items()
    ]
    if not rows:
        return Html("")
    caption = "Parameters without a column"
    return details(caption, table(caption, ["parameter", "value"], rows))
