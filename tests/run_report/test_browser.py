"""The page in a browser: it draws, loads nothing, fits every window, and everybody can use it.

What it looks like is kept in ``build/pictures``, at each width and in each colour scheme.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpctrain.run_report.curves import read_metrics
from hpctrain.run_report.facts import read_facts
from hpctrain.run_report.page import render_page
from hpctrain.run_report.sweep_facts import read_sweep_facts
from hpctrain.run_report.sweep_page import render_sweep_page
from hpctrain.rundir.paths import RunPaths
from hpctrain.tune.ledger import SweepPaths
from tests.run_report.chromium import Chromium
from tests.run_report.fabricated import write_run
from tests.run_report.sweeps import make_trials, write_sweep

PICTURES = Path(__file__).parents[2] / "build" / "pictures"
AXE = Path(__file__).parent / "axe" / "axe.min.js"
WIDTHS = (400, 800, 1400)
# How many charts each has at least.
PAGES = {"one": 5, "two": 5, "crowded": 5, "sweep": 3, "few": 3, "many": 3}
LONG = "validation/" + "a-long-name-without-an-end" * 6
# What the browser draws in the next two frames is there then.
DRAWN = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
DRAW_ALL = f"dispatchEvent(new Event('beforeprint')); {DRAWN}"
FITS = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
# Without the rows of a long table: even if axe is to leave them out, it first looks at all of them.
VIOLATIONS = """(async () => {
  const rows = [...document.querySelectorAll(".tall tbody")];
  const contents = rows.map(one => [...one.children]);
  rows.forEach(one => LEAVE_OUT && one.replaceChildren());
  const result = await axe.run(LEAVE_OUT ? {exclude: [".tall"]} : document);
  rows.forEach((one, n) => one.replaceChildren(...contents[n]));
  return {
    passes: result.passes.length,
    found: result.violations.map(one => [one.id, one.nodes[0].html, one.nodes[0].failureSummary]),
  };
})()"""
# Which figures have a canvas with something in the colour of a curve.
CURVES = """[...document.querySelectorAll(".chart")].map(figure => {
  const canvas = figure.querySelector("canvas");
  if (!canvas) return 0;
  const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const wanted = new Set(COLOURS);
  let found = 0;
  for (let n = 0; n < data.length; n += 4) {
    found += data[n + 3] === 255 && wanted.has(data[n] << 16 | data[n + 1] << 8 | data[n + 2]);
  }
  return found;
})"""
# Of two curves that are the same, one hides the other.
COLOURS = {"light": [0x1F6FC2, 0xC2571A], "dark": [0x6DB0F7, 0xEF8A4A]}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if shutil.which("chromium") is None:
        pytest.skip("no chromium: apt-get install chromium")
    started = Chromium(tmp_path_factory.mktemp("profile"))
    yield started
    started.close()


@pytest.fixture(scope="module")
def one(restarted: RunPaths, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of one run: what is damaged, and names without an end, are on it."""
    odd = {LONG: 1.0, "flat": 7.0, "tiny": 1e-300, "close": 1.0, "huge": -1e299}
    extreme = [
        {"report": n, "metrics": {**odd, "close": 1 + n * 2e-16, "huge": (-1) ** n * 1e300}}
        for n in range(1, 9)
    ]
    run = read_facts(restarted)
    curves = (*run.metrics.curves, *read_metrics(extreme).curves)
    run = replace(
        run,
        damage=(f"/scratch/{LONG}/ledger.jsonl: 2 lines are damaged, and left out.",),
        error=f"rank 1 of 2 failed: {LONG}\n  Log: {LONG}",
        metrics=replace(run.metrics, curves=curves),
    )
    return write(tmp_path_factory, render_page([run], differences={}, now=1.79e9))


@pytest.fixture(scope="module")
def two(restarted: RunPaths, smooth: RunPaths, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of two runs and one that has not begun."""
    runs = [read_facts(restarted), read_facts(smooth)]
    new = replace(
        read_facts(RunPaths(tmp_path_factory.mktemp("new"))), name="new", state="prepared"
    )
    found = {
        runs[1].path: [("train_loop_config['rate']", "1.0", "2.0"), ("argv", LONG, LONG)],
        new.path: f"They cannot be compared: {LONG}",
    }
    return write(tmp_path_factory, render_page([*runs, new], differences=found, now=1.79e9))


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of 500 restarts of 1,000 ranks, with metrics of one point and of none."""
    root = tmp_path_factory.mktemp("crowded") / "run"
    run = read_facts(write_run(root, num_restarts=500, num_nodes=125))
    assert (len(run.attempts), run.num_restarts) == (501, 500)
    return write(tmp_path_factory, render_page([run], differences={}, now=1.79e9))


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a sweep of two trials, of which one has a report."""
    trials = [{"config": {"lr": 0.1}, "reports": [{"loss": 0.5}]}, {"config": {"lr": 0.2}}]
    root = write_sweep(tmp_path_factory.mktemp("few") / "sweep", trials, ended=None)
    facts = read_sweep_facts(SweepPaths(root=root))
    return write(tmp_path_factory, render_sweep_page(facts, now=1.79e9))


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a sweep of 1,000 trials on twelve axes and more."""
    trials = make_trials(1000)
    for number, trial in enumerate(trials):
        trial["config"] |= {f"weight of part {n}": (number * 7**n) % 101 for n in range(9)}
    root = write_sweep(tmp_path_factory.mktemp("many") / "sweep", trials)
    facts = read_sweep_facts(SweepPaths(root=root))
    return write(tmp_path_factory, render_sweep_page(facts, now=1.79e9))


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a sweep with parameters of all kinds, and names without an end."""
    trials = make_trials(60)
    for trial in trials:
        trial["config"][LONG] = LONG + str(len(trial["reports"]))
    root = write_sweep(tmp_path_factory.mktemp("sweep") / ("s" * 90), trials)
    facts = read_sweep_facts(SweepPaths(root=root))
    facts = replace(facts, damage=(f"/scratch/{LONG}/tune.jsonl: 2 lines are damaged.",))
    return write(tmp_path_factory, render_sweep_page(facts, now=1.79e9))


def write(tmp_path_factory: pytest.TempPathFactory, page: str) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page, encoding="utf-8")
    return path


@pytest.mark.parametrize(("name", "num_charts"), PAGES.items(), ids=list(PAGES))
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_it_fits_draws_and_is_accessible(
    browser: Any,
    request: pytest.FixtureRequest,
    name: str,
    num_charts: int,
    scheme: str,
    width: int,
) -> None:
    page: Path = request.getfixturevalue(name)
    browser.show(page, width=width, scheme=scheme)
    browser.evaluate(DRAW_ALL)
    assert browser.evaluate(FITS) == 0
    drawn = browser.evaluate(CURVES.replace("COLOURS", json.dumps(COLOURS[scheme])))
    assert len(drawn) >= num_charts
    assert all(drawn), drawn
    PICTURES.mkdir(parents=True, exist_ok=True)
    browser.photograph(PICTURES / f"{name}-{width}-{scheme}.png")
    browser.evaluate(AXE.read_text(encoding="utf-8"))
    for details in ("", "document.querySelectorAll('details').forEach(one => one.open = true)"):
        browser.evaluate(details)
        # With all 1,000 rows of the table it takes a minute.
        result = browser.evaluate(VIOLATIONS.replace("LEAVE_OUT", json.dumps(name == "many")))
        assert result["found"] == []
        assert result["passes"] > 20
        assert browser.evaluate(FITS) == 0
    assert browser.complaints == []
    assert browser.requests == [page.as_uri()]


def test_the_check_itself_finds_what_is_wrong(browser: Any, tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    page.write_text(
        "<html lang=en><title>bad</title><p style='color:#999;width:900px'>faint</p>"
        "<img src=none.png><script>console.error('oops'); missing()</script>"
    )
    browser.show(page, width=400)
    browser.evaluate(AXE.read_text(encoding="utf-8"))
    result = browser.evaluate(VIOLATIONS.replace("LEAVE_OUT", "false"))
    found = {rule for rule, *_ in result["found"]}
    assert {"color-contrast", "image-alt"} <= found
    assert browser.evaluate(FITS) > 0
    assert len(browser.complaints) >= 2
    assert len(browser.requests) == 2


def test_curves_are_drawn_when_they_are_scrolled_to(browser: Any, one: Path) -> None:
    browser.show(one, width=400, height=300)
    canvases = "document.querySelectorAll('canvas').length"
    browser.evaluate(DRAWN)
    before = browser.evaluate(canvases)
    charts = browser.evaluate("document.querySelectorAll('.chart').length")
    assert before < charts
    browser.evaluate("document.querySelector('.chart:last-of-type').scrollIntoView()")
    waited = f"new Promise(done => {{ const look = () => {canvases} > {before} ? done(true) : "
    waited += "requestAnimationFrame(look); look(); })"
    assert browser.evaluate(waited)


def test_the_arrow_keys_move_along_a_curve(browser: Any, one: Path) -> None:
    browser.show(one, width=800)
    browser.evaluate(DRAW_ALL)
    legend = "[...document.querySelectorAll('.chart .u-value')].slice(0, 2).map(e => e.innerText)"
    assert browser.evaluate(legend) == ["-", "-"]
    browser.evaluate("document.querySelector('.chart .plot').focus()")
    for _ in range(3):
        browser.press("ArrowRight")
    browser.press("ArrowLeft")
    browser.evaluate(DRAWN)
    assert browser.evaluate(legend) == ["2", f"{math.exp(-2 / 9):.6g}"]


def test_logarithmic_values_are_for_curves_that_are_positive(browser: Any, two: Path) -> None:
    browser.show(two, width=1400)
    browser.evaluate(DRAW_ALL)
    picture = "document.querySelectorAll('canvas')[{}].toDataURL()"
    before = [browser.evaluate(picture.format(n)) for n in (0, 3)]
    browser.evaluate("document.getElementById('logarithmic').click()")
    browser.evaluate(DRAWN)
    after = [browser.evaluate(picture.format(n)) for n in (0, 3)]
    # loss is positive, quote"d & 'odd' is 0 now and then.
    assert before[0] != after[0]
    assert before[1] == after[1]
    assert browser.complaints == []


def test_the_first_key_skips_to_the_content(browser: Any, one: Path) -> None:
    browser.show(one, width=800)
    browser.press("Tab")
    assert browser.evaluate("document.activeElement.innerText") == "Skip to the content"
    browser.press("Enter")
    assert browser.evaluate("document.activeElement.id") == "content"


def test_the_trial_under_the_cursor_is_named(browser: Any, sweep: Path) -> None:
    browser.show(sweep, width=1400)
    browser.evaluate(DRAW_ALL)
    for figure in (".parallel", ".charts .chart"):
        picture = f"document.querySelector('{figure} canvas').toDataURL()"
        nearest = f"document.querySelector('{figure} .nearest').innerText"
        assert browser.evaluate(nearest) == ""
        before = browser.evaluate(picture)
        place = browser.evaluate(
            f"(() => {{ const over = document.querySelector('{figure} .u-over');"
            " over.scrollIntoView({block: 'center'}); const at = over.getBoundingClientRect();"
            " return [at.left + at.width / 2, at.bottom - at.height / 4]; })()"
        )
        for shift in (0, 3):
            where = {"x": place[0] + shift, "y": place[1]}
            browser.call("Input.dispatchMouseEvent", type="mouseMoved", **where)
        browser.evaluate(DRAWN)
        assert re.fullmatch(r"trial_\d{5}(: [\d.]+)?", browser.evaluate(nearest))
        # Its line through the axes stands out.
        assert (browser.evaluate(picture) != before) is (figure == ".parallel")
    assert browser.complaints == []


def test_the_arrow_keys_move_from_axis_to_axis(browser: Any, sweep: Path) -> None:
    browser.show(sweep, width=800)
    browser.evaluate(DRAW_ALL)
    browser.evaluate("document.querySelector('.parallel .plot').focus()")
    browser.press("ArrowRight")
    browser.press("ArrowRight")
    browser.evaluate(DRAWN)
    cursor = "document.querySelector('.parallel .nearest').innerText"
    assert browser.evaluate(cursor).startswith("trial_")
    assert browser.complaints == []
