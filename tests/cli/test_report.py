"""``hpctrain report`` as a user calls it; what it shows is tested in tests/run_report."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hpctrain.cli.json_output import schema
from hpctrain.cli.main import app
from hpctrain.cli.report import render
from hpctrain.cli.report_sweep import render as render_sweep
from hpctrain.run_report.facts import RunFacts
from hpctrain.run_report.shares import Efficiency, Share
from hpctrain.run_report.sweep_facts import read_sweep_facts
from hpctrain.run_report.time_use import Use
from hpctrain.run_report.training_parts import Activity, TrainingPart
from hpctrain.tune.ledger import SweepPaths
from tests.cli.test_json_output import check
from tests.run_report.sweeps import make_trials, write_sweep


@pytest.fixture
def place(done: Any, tmp_path: Path) -> Any:
    """A workplace with copies of a finished and of a failed run."""
    from tests.cli.conftest import make_workplace

    mine = make_workplace(tmp_path)
    shutil.copytree(done.path / "hpctrain_runs", tmp_path / "hpctrain_runs")
    return mine


def test_it_writes_one_page_and_says_where(place: Any) -> None:
    before = sorted((place.path / "hpctrain_runs").rglob("*"))
    first = place("report", "fine")
    assert first.returncode == 0, first.stderr
    lines = [line.split(None, 1) for line in first.stdout.splitlines()]
    assert lines[0] == ["fine:", "finished"]
    assert ["reports", "3"] in lines
    assert lines[-1] == ["page", "fine-report.html"]
    page = (place.path / "fine-report.html").read_text()
    assert "<title>fine" in page
    # The run is left as it is, and a second call replaces the page.
    assert sorted((place.path / "hpctrain_runs").rglob("*")) == before
    (place.path / "fine-report.html").write_text(page[:600])
    assert place("report", "fine").returncode == 0
    assert "</html>" in (place.path / "fine-report.html").read_text()


def test_runs_are_compared_from_another_directory(place: Any, tmp_path_factory: Any) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    runs = place.path / "hpctrain_runs"
    place.path = elsewhere
    said = place(
        "report", "fine", "--storage", str(runs), "--compare", str(runs / "bad"), "-o", "two.html"
    )
    assert said.returncode == 0, said.stderr
    page = (elsewhere / "two.html").read_text()
    assert "What differs between fine and bad" in page
    assert "the loss is gone" in page
    assert os.listdir(elsewhere) == ["two.html"]


def test_the_json_is_what_the_schema_says_and_writes_no_page(place: Any) -> None:
    said = place("report", "fine", "--compare", "bad", "--json")
    content = json.loads(said.stdout)
    check(content, schema("report"))
    assert content["output"] is None
    assert not list(place.path.glob("*.html"))
    fine, bad = content["runs"]
    assert (fine["num_reports"], bad["state"]) == (3, "failed")
    assert [metric["name"] for metric in fine["metrics"]] == ["loss", "double"]
    assert sum(use["seconds"] for use in fine["uses"]) == pytest.approx(
        fine["until"] - fine["began_at"]
    )
    (comparison,) = content["comparisons"]
    assert {each["field"] for each in comparison["differences"]} >= {"state"}
    written = json.loads(place("report", "fine", "--json", "-o", "x.html").stdout)
    assert written["output"] == "x.html"
    assert (place.path / "x.html").exists()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["report", "nothing"], "nothing is not a run directory"),
        (["report", "fine", "--compare", "nothing"], "nothing is not a run directory"),
        (["report", "fine", "-o", "train.py"], "a file that is not a report of a run"),
        (["report", "fine", "-o", "no/x.html"], "there is no directory no. Make it"),
        (["report", "fine", "-o", "."], "it is a directory"),
        (["report", "fine", "-o", "/dev/null"], "it is a device or a pipe"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anything_is_written(
    place: Any, arguments: list[str], why: str
) -> None:
    script = (place.path / "train.py").read_text()
    said = place(*arguments)
    assert said.returncode == 2, said.stdout
    assert why in said.stderr
    assert (place.path / "train.py").read_text() == script
    assert not list(place.path.glob("*.html"))


def test_a_directory_that_cannot_be_written_is_named(place: Any) -> None:
    if os.getuid() == 0:
        target = "/proc/report.html"
    else:
        (place.path / "closed").mkdir(mode=0o555)
        target = "closed/report.html"
    said = place("report", "fine", "-o", target)
    assert said.returncode == 4
    assert "cannot be used" in said.stderr


def test_a_run_without_a_plan_is_shown_and_not_compared(place: Any) -> None:
    (place.path / "hpctrain_runs" / "bad" / "plan.json").unlink()
    said = place("report", "fine", "--compare", "bad", "-o", "x.html")
    assert said.returncode == 0, said.stderr
    assert "plan.json is missing." in " ".join(said.stdout.split())
    assert "They cannot be compared" in (place.path / "x.html").read_text()


NOW = 1_700_000_000.0


@pytest.mark.parametrize("width", [80, 120])
def test_the_summary_fits_the_terminal(width: int, golden: Any) -> None:
    shares = (
        Share(use=Use.QUEUE, seconds=5400, core_hours=0.0, gpu_hours=0.0),
        Share(use=Use.START, seconds=300, core_hours=6.0, gpu_hours=0.67),
        Share(use=Use.TRAINING, seconds=86000, core_hours=1720.0, gpu_hours=191.1),
        Share(use=Use.REPEATED, seconds=900, core_hours=18.0, gpu_hours=2.0),
        Share(use=Use.LOST, seconds=120, core_hours=2.4, gpu_hours=0.27),
        Share(use=Use.RESTART, seconds=12.5, core_hours=0.25, gpu_hours=0.03),
    )
    parts = (
        TrainingPart(part=Activity.COMPUTE, seconds=68800.0),
        TrainingPart(part=Activity.DATA, seconds=None, unseen_s=86000.0),
        TrainingPart(part=Activity.CHECKPOINT, seconds=4300.0),
        TrainingPart(part=Activity.COLLECTIVE, seconds=12900.0, most=(20000.0, 7), least=(0.0, 3)),
    )
    unknown = Share(use=Use.TRAINING, seconds=7.25, core_hours=None, gpu_hours=None)
    runs = [
        RunFacts(
            name="llama-70b",
            path="/scratch/runs/llama-70b",
            state="finished",
            is_over=True,
            num_reports=120_000,
            num_repeated=950,
            efficiency=Efficiency(shares=shares, parts=parts),
        ),
        RunFacts(
            name="elastic\x1b[2J",
            path="/scratch/runs/elastic",
            state="running",
            is_over=False,
            until=NOW - 7500,
            efficiency=Efficiency(shares=(unknown,)),
            slow_nodes=(
                "attempt 1: node node7 is slow since step 120: steps take 2.5 times as long; "
                "no longer as of step 300",
            ),
            damage=("/scratch/runs/elastic/metrics.jsonl: 2 lines are damaged, and left out.",),
        ),
        RunFacts(name="new", path="/scratch/runs/new", state="prepared", is_over=False),
    ]
    shown = render(runs, Path("llama-70b-report.html"), width=width, now=NOW)
    assert max(map(len, shown.splitlines())) <= width
    golden(f"report-{width}.txt", f"{shown}\n")


def test_a_node_that_was_slow_is_in_report_and_why(done: Any, tmp_path: Path) -> None:
    run = tmp_path / "slow"
    shutil.copytree(done.run_dir("fine"), run)
    event = {"event": "node-slow", "time": 1.0, "attempt": 1, "node": "node7", "factor": 2.5}
    with open(run / "ledger.jsonl", "a") as ledger:
        ledger.write(json.dumps({**event, "since_step": 9, "reason": "a <busy> CPU"}) + "\n")
    slow = "node node7 is slow since step 9: steps take 2.5 times as long: a <busy> CPU"
    page = tmp_path / "page.html"
    told = done("report", str(run), "--output", str(page))
    assert f"  slow        attempt 1: {slow}" in " ".join(told.stdout.split()).replace(
        " slow attempt", "  slow        attempt"
    )
    assert "2.5 times as long: a &lt;busy&gt; CPU" in page.read_text()
    found = json.loads(done("report", str(run), "--json").stdout)
    assert found["runs"][0]["slow_nodes"] == [f"attempt 1: {slow}"]
    assert slow in " ".join(done("why", str(run)).stdout.split())
    assert json.loads(done("why", str(run), "--json").stdout)["slow_nodes"] == [
        f"attempt 1: {slow}"
    ]


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """A sweep of trials of all kinds, in the default storage of a workplace."""
    return write_sweep(tmp_path / "hpctrain_runs" / "search", make_trials(12))


def report(*words: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["report", *map(str, words)])
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


def test_a_sweep_has_a_page_of_its_own(
    sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # By its name in the default storage, and by its directory.
    for words in (["search"], [sweep, "-o", "other.html"]):
        first, *rest = [line.split(None, 1) for line in report(*words).splitlines()]
        assert first == ["search:", "ended"]
        assert ["trials", "12: 10 TERMINATED, 1 PENDING, 1 ERROR"] in rest
        target = Path(rest[-1][1])
        assert "<title>search - report of a sweep</title>" in target.read_text()
    report("search")
    assert sorted(path.name for path in tmp_path.glob("*.html")) == [
        "other.html",
        "search-report.html",
    ]
    (tmp_path / "mine.html").write_text("mine")
    assert "is not replaced" in report("search", "-o", "mine.html", code=2)
    assert "are compared on its page" in report("search", "--compare", "search", code=2)


def test_the_json_of_a_sweep_is_as_its_schema_says(sweep: Path) -> None:
    found = json.loads(report(sweep, "--json"))
    check(found, schema("report"))
    (only,) = found["sweeps"]
    assert found["output"] is None
    assert found["runs"] == []
    assert len(only["trials"]) == 12
    scores = {trial["trial"]: trial["score"] for trial in only["trials"]}
    assert scores[only["best"]] == min(score for score in scores.values() if score is not None)
    assert only["improvements"][-1]["value"] <= scores[only["best"]]


@pytest.mark.parametrize("width", [80, 120])
def test_what_a_terminal_shows_of_a_sweep(sweep: Path, width: int) -> None:
    golden = Path(__file__).parent / "golden" / f"report-sweep-{width}.txt"
    (sweep / "trial_00001/metrics.jsonl").write_text("damaged\n")
    facts = read_sweep_facts(SweepPaths(root=sweep))
    damage = tuple(what.replace(str(sweep), "/runs/search") for what in facts.damage)
    facts = replace(facts, damage=damage, reason="trial_00001 failed, and fail_fast is set")
    shown = render_sweep(facts, Path("search-report.html"), width=width)
    assert max(map(len, shown.splitlines())) <= width
    assert shown.splitlines() == golden.read_text(encoding="utf-8").splitlines()
