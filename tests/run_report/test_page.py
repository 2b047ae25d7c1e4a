"""The page of real runs: everything is escaped, and nothing is loaded from elsewhere."""

from __future__ import annotations

import html.parser
import json
import re
from dataclasses import replace
from typing import Any

import pytest

from hpctrain.run_report.chart_data import MOST_CHARTS, choose_charts, make_data, to_json
from hpctrain.run_report.curves import Metrics, read_metrics
from hpctrain.run_report.facts import RunFacts, read_facts
from hpctrain.run_report.page import label_runs, render_page
from hpctrain.run_report.time_use import split_time
from hpctrain.run_report.training_parts import Activity
from hpctrain.rundir.attempts import read_attempts
from hpctrain.rundir.paths import RunPaths
from tests.run_report.conftest import ODD


class Elements(html.parser.HTMLParser):
    """The elements of a page, and the text of its tables."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.found)


def data_of(page: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1])


def render(*runs: RunFacts, **differences: Any) -> str:
    return render_page(runs, differences=differences, now=1e9)


def test_odd_names_are_text_wherever_they_stand(restarted: RunPaths) -> None:
    run = replace(read_facts(restarted), name='<img src=x onerror="a">', state="<i>")
    page = Elements(render(run))
    assert page.count("script") == 3
    assert page.count("img") == page.count("b") == page.count("i") == 0
    for text in (ODD, "quote\"d & 'odd'", "val/größe", "<b onclick='x'>bold</b>\\x1b[2J", run.name):
        assert text in page.text
    assert not any("onclick" in attributes for _, attributes in page.found)


@pytest.mark.parametrize(
    ("silent_s", "shown"), [(5, "running"), (7500, "running, last news 2 h 5 min ago")]
)
def test_a_run_without_news_is_not_said_to_run_now(silent_s: float, shown: str) -> None:
    run = RunFacts(name="a", path="/a", state="running", is_over=False, until=1e9 - silent_s)
    assert f'<span class="badge open">{shown}</span>' in render(run)


def test_nothing_is_loaded_and_only_the_scripts_of_the_page_may_run(restarted: RunPaths) -> None:
    page = Elements(render(read_facts(restarted)))
    for _, attributes in page.found:
        for name in ("src", "href", "data", "action", "srcset"):
            assert (attributes.get(name) or "#").startswith(("#", "data:,"))
    policies = [a["content"] for _, a in page.found if a.get("http-equiv")]
    assert policies[0] is not None
    assert policies[0].startswith("default-src 'none'; ")
    assert "script-src 'sha256-" in policies[0]
    assert "unsafe" not in policies[0].replace("style-src 'unsafe-inline'", "")


def test_values_that_are_not_finite_are_gaps_in_the_curve_and_named_in_the_table(
    restarted: RunPaths,
) -> None:
    run = read_facts(restarted)
    charts = {c.name: n for n, c in enumerate(choose_charts([run]))}
    assert set(charts) == {"loss", "val/größe", ODD, "quote\"d & 'odd'"}
    (series,) = data_of(render(run))["charts"][charts["quote\"d & 'odd'"]]["series"]
    assert series["x"] == list(range(1, 21))
    assert [n for n, y in zip(series["x"], series["y"], strict=True) if y is None] == [
        4,
        8,
        12,
        16,
        20,
    ]
    row = re.search(r'<th scope="row">never finite</th>.*?</tr>', render(run))
    assert row
    assert re.findall(r">([^<]*)</td>", row[0]) == ["inf", "-", "-", "-", "-", "20", "20"]


def test_the_parts_of_the_training_are_shown_with_the_ranks(restarted: RunPaths) -> None:
    run = read_facts(restarted)
    # One rank, with a checkpoint every fifth step and without an iterator of data.
    assert {each.part.value for each in run.efficiency.parts if each.seconds is None} == {"data"}
    page = render(run)
    row = re.search(r"</span>training: data</th>.*?</tr>", page)
    assert row
    assert ">not seen<" in row[0]
    assert "by other means than an iterator of hpctrain" in row[0]
    assert '<span class="use checkpoint"' in page
    assert '<span class="use training"' not in page.split("Timeline of")[0]
    parts = tuple(
        replace(each, seconds=2.0, unseen_s=3.0, attempt=1, most=(4.0, 7), least=(0.5, 2))
        if each.part is Activity.COLLECTIVE
        else each
        for each in run.efficiency.parts
    )
    shown = render(replace(run, efficiency=replace(run.efficiency, parts=parts)))
    assert "in attempt 1 from 0.5 s (rank 2) to 4 s (rank 7)" in shown
    assert "in 3 s of the training it is not seen, or only in part" in shown
    two = render_page([run, run], differences={}, now=1e9)
    both = re.search(r"<caption>Where the time of the runs went.*?</table>", two)
    assert both
    assert re.search(r">training: checkpoint</th><td[^>]*>\d", both[0])


def test_what_checkpoints_cost_is_said_to_be_unknown(restarted: RunPaths) -> None:
    run = read_facts(restarted)
    # As of a run of an earlier version.
    run = replace(run, efficiency=replace(run.efficiency, parts=()))
    assert "What the training consists of" in render(run)
    row = re.search(r'<th scope="row">checkpoints</th>.*?</tr>', render(run))
    assert row
    assert row[0].count("not known") == 3
    assert "from report() to the commit, 4 took" in row[0]
    without = replace(run, checkpoints=(), num_reported_checkpoints=0)
    assert '<th scope="row">checkpoints</th>' not in render(without)


def test_every_chart_has_its_values_in_a_table(restarted: RunPaths, smooth: RunPaths) -> None:
    page = render(read_facts(restarted), read_facts(smooth))
    figures = re.findall(r"<figure.*?</figure>", page, re.DOTALL)
    assert len(figures) == len(data_of(page)["charts"]) == 5
    for number, figure in enumerate(figures):
        assert f'data-chart="{number}"' in figure
        assert figure.count("<table") == 2


def test_runs_are_compared_by_curves_and_differences(restarted: RunPaths, smooth: RunPaths) -> None:
    runs = [read_facts(restarted), read_facts(smooth)]
    page = render_page(runs, differences={runs[1].path: [("rate", "1.0", "<2>")]}, now=1e9)
    assert data_of(page)["labels"] == ["restarted", "smooth"]
    assert [one["run"] for one in data_of(page)["charts"][0]["series"]] == [0, 1]
    assert "<td>&lt;2&gt;</td>" in page
    both = re.search(r"<caption>Where the time of the runs went.*?</table>", page)
    assert both
    # The second run was not restarted, and none had GPUs.
    assert re.search(r'<th scope="row">repeated</th><td[^>]*>\d[^<]*</td><td[^>]*>-</td>', both[0])
    assert "GPU" not in both[0]
    assert ">Configuration<" not in page
    unknown = render_page(runs, differences={runs[1].path: "no <plan>"}, now=1e9)
    assert "<p>no &lt;plan&gt;</p>" in unknown
    assert label_runs([runs[0], runs[0]]) == [runs[0].path] * 2


def test_a_long_chain_of_attempts_is_shown_by_its_begin_and_its_end(restarted: RunPaths) -> None:
    events = []
    for attempt in range(1, 501):
        at = 100.0 * attempt
        events += [
            {"event": "attempt-started", "time": at, "attempt": attempt},
            {"event": "attempt-ended", "time": at + 99, "attempt": attempt, "kind": "worker"},
        ]
    intervals = tuple(split_time(events, [], until=50_100))
    _, attempts = read_attempts(events)
    run = replace(read_facts(restarted), began_at=100.0, until=50_100.0, intervals=intervals)
    page = render(replace(run, attempts=tuple(attempts)))
    shown = re.findall(r'<th scope="row">(?:attempt )?(\d+)</th>', page)
    wanted = [*range(1, 51), *range(351, 501)]
    # In the timeline, then in the table of attempts.
    assert [int(number) for number in shown if len(number) < 6][:400] == 2 * wanted
    assert page.count("<p>300 rows after the first 50 are left out.</p>") == 2


def test_a_thousand_metrics_and_a_million_reports_stay_small(restarted: RunPaths) -> None:
    run = read_facts(restarted)
    many = [{"report": n, "metrics": {f"m{k}": n / 3 for k in range(400)}} for n in range(1, 50)]
    page = render(replace(run, metrics=read_metrics(many)))
    assert page.count("<figure") == MOST_CHARTS + 1
    assert "The first 300 of 400 metrics have a curve" in page
    (long,) = read_metrics(
        {"report": n, "metrics": {"loss": n % 977 + 0.123456789}} for n in range(1, 300_001)
    ).curves
    page = render(replace(run, metrics=Metrics(curves=(long,))))
    assert "thinned to 2000 points at most" in page
    assert len(data_of(page)["charts"][0]["series"][0]["x"]) <= 2000
    assert len(page) < 250_000
    assert len(make_data([run], ["a"], choose_charts([run]))) < 20_000


@pytest.mark.parametrize("text", ["</script>", "<!--<script>", "]]>", "&lt;", "\u2028", "\ud800"])
def test_data_cannot_end_the_script_that_holds_it(text: str) -> None:
    encoded = to_json({text: text})
    assert not set("<>&") & set(encoded)
    assert encoded.isascii()
    assert json.loads(encoded) == {text: text}
