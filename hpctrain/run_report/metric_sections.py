"""The sections of a page on metrics and throughput. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TypeVar

from hpctrain.run_report.chart_data import MOST_CHARTS, Chart, most_points
from hpctrain.run_report.facts import RunFacts
from hpctrain.run_report.markup import Cell, Html, details, format_number, table, to_html

T = TypeVar("T")

_ROWS_OF_A_CHART = 20


def metrics(runs: Sequence[RunFacts], labels: Sequence[str], charts: Sequence[Chart]) -> Html:
    """Return the curves, and a table of all metrics. Not collective."""
    if not any(run.metrics.curves or run.metrics.texts for run in runs):
        return Html("<p>No metrics were reported.</p>")
    parts = [_explain(runs, charts)]
    parts += [
        figure(number, chart.name, "report", _values(chart, labels))
        for number, chart in enumerate(charts)
    ]
    plots = Html(f'<div class="charts">{"".join(parts[1:])}</div>')
    return Html("".join([parts[0], plots, _summary(runs, labels), _texts(runs, labels)]))


def figure(number: int, name: str, unit: str, values: Html, *, has_nearest: bool = False) -> Html:
    """Return the place of a chart, with its values as a table. Not collective.

    Parameters
    ----------
    number
        Of the chart, in the data of the page.
    name
        What it shows.
    unit
        Of its horizontal axis.
    values
        The table.
    has_nearest
        Whether the curve that is nearest to the cursor is named, in place of a legend.
    """
    nearest = '<p class="nearest" aria-live="polite"></p>' if has_nearest else ""
    shown = to_html(name)
    label = f"{shown} by {unit}; its values are in the table below"
    return Html(
        f'<figure class="chart" data-chart="{number}"><figcaption>{shown}</figcaption>'
        f'<div class="plot" tabindex="0" role="group" aria-label="{label}"></div>'
        f"{nearest}{details('Values', values)}</figure>"
    )


def throughput(runs: Sequence[RunFacts], labels: Sequence[str], number: int) -> Html:
    """Return the reports a second over time. Not collective.

    Parameters
    ----------
    number
        Of the chart, in the data of the page.
    """
    if not any(run.rates for run in runs):
        return Html("<p>Not known: there are fewer than two reports.</p>")
    tables = [
        table(
            f"Throughput of {label}",
            ["seconds", "reports", "reports/s"],
            [
                [f"{rate.begin:.4g} to {rate.end:.4g}", str(rate.num_reports), f"{rate.per_s:.4g}"]
                for rate in spread(run.rates)
            ],
            numeric=(1, 2),
        )
        for run, label in zip(runs, labels, strict=True)
        if run.rates
    ]
    chart = figure(number, "reports/s", "seconds since the first report", Html("".join(tables)))
    return Html(
        "<p>Reports a second, from the first report on, in equal parts of the time; reports that "
        f'were made again count, and so do pauses.</p><div class="charts">{chart}</div>'
    )


def _explain(runs: Sequence[RunFacts], charts: Sequence[Chart]) -> Html:
    lines = ["Curves are over the number of the report."]
    longest = max((len(c.reports) for run in runs for c in run.metrics.curves), default=0)
    if charts and longest > (most := most_points(charts)):
        lines.append(
            f"They are thinned to {most} points at most: of each part of a curve the smallest and "
            f"the largest value are shown, and a gap where a value is not finite. The tables are "
            f"of all values."
        )
    names = {curve.name for run in runs for curve in run.metrics.curves}
    if len(charts) == MOST_CHARTS and len(names) > MOST_CHARTS:
        lines.append(
            f"The first {MOST_CHARTS} of {len(names)} metrics have a curve; the others are in the "
            f"table alone."
        )
    return Html(f"<p>{to_html(' '.join(lines))}</p>")


def _values(chart: Chart, labels: Sequence[str]) -> Html:
    tables = [
        table(
            f"{chart.name} of {label}",
            ["report", "value"],
            [
                [str(curve.reports[n]), _number(curve.values[n])]
                for n in spread(range(len(curve.values)))
            ],
            numeric=(0, 1),
        )
        for curve, label in zip(chart.curves, labels, strict=True)
        if curve is not None
    ]
    return Html("".join(tables))


def spread(values: Sequence[T]) -> list[T]:
    """Return some of the values, evenly spread, with the first and the last one.

    Not collective.
    """
    last, steps = len(values) - 1, _ROWS_OF_A_CHART - 1
    if last <= steps:
        return list(values)
    return [values[round(last * n / steps)] for n in range(_ROWS_OF_A_CHART)]


def _summary(runs: Sequence[RunFacts], labels: Sequence[str]) -> Html:
    rows = list(_summary_rows(runs, labels))
    if not rows:
        return Html("")
    columns = ["metric", *(["run"] if len(runs) > 1 else [])]
    columns += ["last", "least", "at report", "most", "at report", "values", "not finite"]
    first = len(columns) - 7
    numeric = range(first, first + 7)
    return table("All metrics", columns, rows, numeric=numeric, style="metrics")


def _summary_rows(runs: Sequence[RunFacts], labels: Sequence[str]) -> Iterator[list[Cell]]:
    names = dict.fromkeys(curve.name for run in runs for curve in run.metrics.curves)
    found = [{curve.name: curve for curve in run.metrics.curves} for run in runs]
    for name in names:
        for curves, label in zip(found, labels, strict=True):
            if (curve := curves.get(name)) is None:
                continue
            least, most = curve.least, curve.most
            yield [
                name,
                *([label] if len(runs) > 1 else []),
                _number(curve.values[-1]),
                "-" if least is None else format_number(least[1]),
                "-" if least is None else str(least[0]),
                "-" if most is None else format_number(most[1]),
                "-" if most is None else str(most[0]),
                str(len(curve.values)),
                str(curve.num_not_finite),
            ]


def _texts(runs: Sequence[RunFacts], labels: Sequence[str]) -> Html:
    rows: list[list[Cell]] = [
        [name, *([label] if len(runs) > 1 else []), text]
        for run, label in zip(runs, labels, strict=True)
        for name, text in run.metrics.texts.items()
    ]
    columns = ["metric", *(["run"] if len(runs) > 1 else []), "last value"]
    return table("Metrics that are not numbers", columns, rows) if rows else Html("")


def _number(value: float) -> str:
    return format_number(value) if math.isfinite(value) else str(value)
