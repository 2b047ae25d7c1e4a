"""A page about runs: one HTML file that needs no other one, and no network. Pure."""

from __future__ import annotations

import base64
import hashlib
import string
from collections.abc import Mapping, Sequence
from importlib import resources

from hpctrain.run_report import metric_sections, sections, time_sections
from hpctrain.run_report.chart_data import choose_charts, make_data
from hpctrain.run_report.facts import RunFacts
from hpctrain.run_report.markup import Html, moment, table, to_html
from hpctrain.version import __version__

MARK = '<meta name="generator" content="hpctrain report'
"""In the head of every page, by which another report knows that it may replace it."""


def render_page(
    runs: Sequence[RunFacts],
    *,
    differences: Mapping[str, Sequence[tuple[str, str, str]] | str],
    now: float,
) -> str:
    """Return the page. Not collective.

    Parameters
    ----------
    runs
        The run, and those that it is compared with.
    differences
        By the directory of each further run, the field and both values of what differs; or why
        they cannot be compared.
    now
        When the page is made, in seconds since the epoch.
    """
    labels = label_runs(runs)
    charts = choose_charts(runs)
    content = {
        "Overview": _overview(runs, labels, now),
        "Where the time went": time_sections.time_use(runs, labels),
        "Timeline": Html(
            "".join(
                time_sections.timeline(run, label) for run, label in zip(runs, labels, strict=True)
            )
        ),
        "Metrics": metric_sections.metrics(runs, labels, charts),
        "Throughput": metric_sections.throughput(runs, labels, len(charts)),
        "Checkpoints": Html(
            "".join(
                sections.checkpoints(run, label) for run, label in zip(runs, labels, strict=True)
            )
        ),
    }
    if len(runs) > 1:
        content["Differences"] = _differences(runs, labels, differences)
    else:
        content["Configuration"] = sections.configuration(runs[0])
    return fill_page(
        " and ".join(labels),
        subject="run",
        state="" if len(runs) > 1 else _badge(runs[0], now),
        damage=[what for run in runs for what in run.damage],
        content=content,
        data=make_data(runs, labels, charts),
        now=now,
    )


def fill_page(
    title: str,
    *,
    subject: str,
    state: str,
    damage: Sequence[str],
    content: Mapping[str, Html],
    data: str,
    now: float,
) -> str:
    """Return a page with these sections. Not collective.

    Parameters
    ----------
    title
        What it is about.
    subject
        What that is: ``run`` or ``sweep``.
    state
        HTML that follows the title.
    damage
        Files that cannot be read, each as a sentence.
    content
        The sections, by their headings.
    data
        What the curves are drawn from, as `hpctrain.run_report.chart_data.to_json` returns it.
    now
        When the page is made, in seconds since the epoch.
    """
    scripts = [_read("uplot/uPlot.iife.min.js"), _read("page.js")]
    return string.Template(_read("page.html")).substitute(
        title=to_html(title),
        subject=subject,
        mark=f'{MARK} {__version__}">',
        policy=_policy(scripts),
        style=_read("uplot/uPlot.min.css") + _read("page.css"),
        state=state,
        made=f"{moment(now)} by hpctrain {__version__}",
        damage=_damage(damage),
        contents="".join(f'<li><a href="#{_id(name)}">{name}</a></li>' for name in content),
        sections="".join(
            f'<section aria-labelledby="{_id(name)}"><h2 id="{_id(name)}">{name}</h2>'
            f"{shown}</section>"
            for name, shown in content.items()
        ),
        data=data,
        library=scripts[0],
        script=scripts[1],
    )


def label_runs(runs: Sequence[RunFacts]) -> list[str]:
    """Return what the page calls each run: its name, or its path if two have that name.

    Not collective.
    """
    names = [run.name for run in runs]
    return [run.name if names.count(run.name) == 1 else run.path for run in runs]


def _overview(runs: Sequence[RunFacts], labels: Sequence[str], now: float) -> Html:
    if len(runs) == 1:
        return sections.overview(runs[0])
    return Html(
        "".join(
            f"<h3>{to_html(label)} {_badge(run, now)}</h3>{sections.overview(run)}"
            for run, label in zip(runs, labels, strict=True)
        )
    )


def _badge(run: RunFacts, now: float) -> str:
    kind = "over" if run.is_over else "open"
    return f'<span class="badge {kind}">{to_html(run.describe_state(now))}</span>'


def _damage(found: Sequence[str]) -> str:
    if not found:
        return ""
    lines = "".join(f"<li>{to_html(what)}</li>" for what in found)
    return (
        '<aside class="damage" aria-label="Damaged files"><p>Some files are missing, damaged or '
        f"still being written. What they would contain is not on this page:</p>"
        f"<ul>{lines}</ul></aside>"
    )


def _differences(
    runs: Sequence[RunFacts],
    labels: Sequence[str],
    differences: Mapping[str, Sequence[tuple[str, str, str]] | str],
) -> Html:
    parts = []
    for run, label in zip(runs[1:], labels[1:], strict=True):
        found = differences.get(run.path, ())
        if isinstance(found, str):
            parts.append(f"<p>{to_html(found)}</p>")
        elif found:
            columns = ["field", labels[0], label]
            parts.append(table(f"What differs between {labels[0]} and {label}", columns, found))
        else:
            parts.append(f"<p>{to_html(label)} differs in name, place and time alone.</p>")
    return Html("".join(parts))


def _policy(scripts: Sequence[str]) -> str:
    """Return the policy by which the browser runs these scripts alone, and loads nothing."""
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
        for script in scripts
    )
    return f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {hashes}"


def _id(name: str) -> str:
    return name.lower().replace(" ", "-")


def _read(name: str) -> str:
    file = resources.files("hpctrain.run_report").joinpath(*name.split("/"))
    return file.read_text(encoding="utf-8")
