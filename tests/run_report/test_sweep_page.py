"""The page of a sweep: what its files tell, escaped, and bounded for thousands of trials."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from hpctrain.errors import ConfigError
from hpctrain.run_report.sweep_axes import Axis, differing, make_axis
from hpctrain.run_report.sweep_facts import SweepFacts, read_spans, read_sweep_facts
from hpctrain.run_report.sweep_page import MOST_TRIALS, render_sweep_page
from hpctrain.tune.ledger import SweepPaths, read_record
from hpctrain.tune.result_grid import make_grid
from tests.run_report.sweeps import BEGAN, ODD, make_trials, write_sweep
from tests.run_report.test_page import Elements, data_of


def read(root: Path) -> SweepFacts:
    return read_sweep_facts(SweepPaths(root=root))


def render(sweep: SweepFacts) -> str:
    return render_sweep_page(sweep, now=BEGAN + 3600)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep of 40 trials of all kinds."""
    return write_sweep(tmp_path_factory.mktemp("sweeps") / "mixed", make_trials(40))


def test_odd_names_are_text_and_nothing_but_the_scripts_of_the_page_runs(mixed: Path) -> None:
    page = Elements(render(read(mixed)))
    assert page.count("script") == 3
    assert page.count("img") == 0
    for text in (ODD, "<b>two</b>", "val/größe", "CUDA out of memory"):
        assert text in page.text
    for _, attributes in page.found:
        for name in ("src", "href", "action"):
            assert (attributes.get(name) or "#").startswith(("#", "data:,"))


def test_the_best_trial_is_that_of_the_command(mixed: Path) -> None:
    paths = SweepPaths(root=mixed)
    record = read_record(paths)
    for name in record.trials:
        status = {"name": name, "state": "finished", "launcher": "local"}
        (mixed / name / "status.json").write_text(json.dumps(status))
    grid = make_grid(paths, record.trials, metric="loss", mode="min")
    facts = read(mixed)
    assert facts.best is not None
    assert facts.best.name == Path(grid.get_best_result().path).name
    page = render(facts)
    assert f"{facts.best.name} (best)" in page
    data = data_of(page)
    (line,) = [line for line in data["parallel"]["series"] if line["kind"] == "best"]
    assert data["labels"][line["run"]] == facts.best.name
    assert line["value"] == f"{facts.best.score:.6g}"
    for name in record.trials:
        (mixed / name / "status.json").unlink()


def test_each_trial_is_a_line_a_row_and_a_curve(mixed: Path) -> None:
    facts = read(mixed)
    page = render(facts)
    with_values = [trial.name for trial in facts.trials if trial.curve.values]
    assert len(with_values) < 40
    table = re.search(r"<caption>Trials, the best first.*?</table>", page)
    assert table
    assert len(re.findall(r'<th scope="row">', table[0])) == 40
    data = data_of(page)
    assert {line["run"] for line in data["parallel"]["series"]} == set(range(40))
    curves, best = data["charts"]
    assert {data["labels"][one["run"]] for one in curves["series"]} == set(with_values)
    assert facts.best is not None
    # It is drawn over the others.
    assert data["labels"][curves["series"][-1]["run"]] == facts.best.name
    assert curves["best"] == curves["series"][-1]["run"]
    (steps,) = best["series"]
    assert steps["y"] == sorted(steps["y"], reverse=True)
    assert steps["x"][-1] == pytest.approx(facts.until - BEGAN)


def test_the_best_so_far_is_in_the_order_of_time(tmp_path: Path) -> None:
    values = [[3.0, 5.0, 1.0], [4.0, math.nan, 2.0, 0.5], [math.inf]]
    trials = [{"config": {}, "reports": [{"loss": value} for value in each]} for each in values]
    facts = read(write_sweep(tmp_path, trials))
    # The trials begin one second after the other.
    assert facts.improvements == [
        (1.0, 3.0, "trial_00000"),
        (3.0, 1.0, "trial_00000"),
        (5.0, 0.5, "trial_00001"),
    ]
    largest = read(write_sweep(tmp_path, trials, mode="max"))
    assert [value for _, value, _ in largest.improvements] == [3.0, 4.0, 5.0]
    assert largest.best is not None
    assert largest.best.name == "trial_00000"
    assert read(write_sweep(tmp_path, trials, mode=None)).best is None


def test_when_a_trial_ran_is_in_the_ledger_of_the_sweep() -> None:
    def event(at: float, kind: str, name: str = "a") -> dict[str, Any]:
        return {"time": at, "event": f"trial-{kind}", "trial": name}

    spans = read_spans(
        [
            event(1, "started"),
            event(2, "interrupted"),
            event(5, "started"),
            event(6, "started"),
            event(7, "stop"),
            event(8, "ended"),
            event(3, "started", "b"),
            event(4, "failed", "b"),
            event(9, "started", "c"),
            event(9, "failed", "d"),
        ]
    )
    found = {
        name: [(s.begin, s.stopped_at, s.end, s.has_failed) for s in each]
        for name, each in spans.items()
    }
    assert found == {
        "a": [(1, None, 2, False), (5, 7, 8, False)],
        "b": [(3, None, 4, True)],
        "c": [(9, None, None, False)],
    }


@pytest.mark.parametrize(
    ("values", "scale", "positions", "ticks"),
    [
        ([0, 5, 10], "linear", [0, 0.5, 1], ["0", "2", "4", "6", "8", "10"]),
        (
            [1e-5, 1e-3, 1e-1],
            "logarithmic",
            [0, 0.5, 1],
            ["1e-05", "0.0001", "0.001", "0.01", "0.1"],
        ),
        # Drawn evenly, it is not logarithmic for one small value.
        ([0.001, 0.5, 0.6, 1.0], "linear", [0, 499 / 999, 599 / 999, 1], None),
        ([0, 1e-3, 1e3], "linear", [0, 1e-6, 1], None),
        (["b", "a", "b"], "categories", [0, 1, 0], ["b", "a"]),
        ([True, False, None], "categories", [0, 1, None], ["true", "false"]),
        ([1, "1", [1]], "categories", [0, 0, 1], ["1", "[1]"]),
        ([3, 3, 3], "linear", [0.5, 0.5, 0.5], ["3"]),
        ([math.nan, math.inf, 1.0], "linear", [None, None, 0.5], ["1"]),
        ([None, None], "linear", [None, None], []),
        ([-1e308, 0.0, 1e308], "linear", [0, 0.5, 1], None),
        ([5e-324, 0.0], "linear", [0.5, 0.5], None),
        ([10**400, 1, 2], "linear", [None, 0, 1], None),
        ([1.0, 1.0 + 2**-52], "linear", [0, 1], None),
    ],
)
def test_an_axis_fits_its_values(
    values: list[Any], scale: str, positions: list[Any], ticks: list[str] | None
) -> None:
    axis: Axis = make_axis("a", values)
    assert axis.scale == scale
    # None has no place.
    assert [-9 if at is None else at for at in axis.positions] == pytest.approx(
        [-9 if at is None else at for at in positions], rel=1e-6
    )
    if ticks is not None:
        assert [text for _, text in axis.ticks] == ticks
    assert all(-1e-6 <= at <= 1 + 1e-6 for at, _ in axis.ticks)
    assert len(axis.ticks) <= 13


def test_a_parameter_of_many_categories_has_few_labels() -> None:
    axis = make_axis("a", [f"value {n}" for n in range(500)])
    assert len(axis.ticks) <= 10
    assert len(set(axis.positions)) == 500


def test_a_parameter_that_some_trials_lack_differs() -> None:
    assert differing([{"a": 1, "b": 2}, {"a": 1}]) == ["b"]
    assert differing([{"a": 1, "b": [1]}, {"a": 1.0, "b": [2]}]) == ["a", "b"]
    assert differing([]) == []


def test_a_line_goes_through_the_values_of_a_trial_and_below_the_axis_where_there_is_none(
    tmp_path: Path,
) -> None:
    long = "a-name-without-an-end" * 9
    trials = [
        {"config": {"lr": 1e-4, long: "sgd"}, "reports": [{"loss": 1.0}]},
        {"config": {"lr": 1e-2}, "reports": [{"loss": 3.0}]},
        {"config": {"lr": 1.0, long: "adamw"}, "reports": [{"loss": math.nan}]},
    ]
    drawn = data_of(render(read(write_sweep(tmp_path, trials))))["parallel"]
    lr, name, loss = drawn["axes"]
    below = drawn["lowest"]
    assert below < 0
    found = {line["run"]: (line["kind"], *line["y"]) for line in drawn["series"]}
    assert found == {
        0: ("best", 0, 0, 0),
        1: ("other", 0.5, below, 1),
        2: ("none", 1, 1, below),
    }
    assert drawn["series"][-1]["run"] == 0
    assert lr["lines"] == ["lr", "logarithmic"]
    assert [text for _, text in name["ticks"]] == ["sgd", "adamw", "none"]
    assert name["ticks"][-1][0] == loss["ticks"][-1][0] == below
    assert name["lines"][-1] == "categories"
    assert len(name["lines"]) <= 4
    assert max(map(len, name["lines"])) <= 18


@pytest.mark.parametrize("count", [0, 1])
def test_a_sweep_that_has_just_begun_has_a_page(tmp_path: Path, count: int) -> None:
    trials = [{"config": {"lr": 1}, "event": None}] * count
    facts = read(write_sweep(tmp_path, trials, ended=None))
    page = render(facts)
    assert "interrupted" in page
    assert data_of(page)["charts"] == []
    assert "There is no value that can be drawn." in page


def test_without_a_metric_the_first_number_is_shown_and_none_is_the_best(tmp_path: Path) -> None:
    trials = [{"config": {"x": n}, "reports": [{"t": "a", "acc": n / 2}]} for n in range(3)]
    facts = read(write_sweep(tmp_path, trials, metric=None, mode=None))
    page = render(facts)
    assert (facts.metric, facts.best) == ("acc", None)
    assert "Which trial is best is not known" in page
    assert "(best)" not in page
    assert len(data_of(page)["charts"]) == 1


def test_what_is_damaged_is_named_and_the_rest_is_shown(tmp_path: Path) -> None:
    root = write_sweep(tmp_path / "s", make_trials(5))
    lines = (root / "tune.jsonl").read_bytes().splitlines(keepends=True)
    lines[3:3] = [b"\xff not JSON\n", b'{"event": "trial-added", "time": 1}\n']
    (root / "tune.jsonl").write_bytes(b"".join(lines) + b'{"event')
    (root / "trial_00001/metrics.jsonl").write_bytes(b"damaged\n")
    (root / "trial_00002/metrics.jsonl").unlink()
    (root / "trial_00002/metrics.jsonl").mkdir()
    facts = read(root)
    assert len(facts.trials) == 5
    assert [trial.num_reports for trial in facts.trials[:3]] == [10, 0, 0]
    page = render(facts)
    for what in (
        "tune.jsonl: 2 lines are damaged",
        "tune.jsonl: the last line is torn",
        "trial_00001/metrics.jsonl: 1 line is damaged",
        "trial_00002/metrics.jsonl is damaged: Is a directory",
    ):
        assert what in page, what
    (root / "tune.jsonl").write_text("damaged\n")
    with pytest.raises(ConfigError, match="it is not a sweep"):
        read(root)


def test_the_page_of_thousands_of_trials_is_bounded(tmp_path: Path) -> None:
    trials = make_trials(1000, steps=200)
    facts = read(write_sweep(tmp_path / "s", trials))
    page = render(facts)
    data = data_of(page)
    curves, _ = data["charts"]
    drawn = [len(series["x"]) for series in curves["series"]]
    assert 50_000 < sum(drawn) <= 150_000
    assert max(drawn) < 200
    assert len(page) < 3e6
    assert len(data["parallel"]["series"]) == 1000
    more = [{"config": {"x": n}, "reports": [{"loss": float(n)}]} for n in range(MOST_TRIALS + 5)]
    facts = read(write_sweep(tmp_path / "more", more))
    page = render(facts)
    assert f"{MOST_TRIALS} of {MOST_TRIALS + 5} trials are on this page" in page
    assert len(data_of(page)["parallel"]["series"]) == MOST_TRIALS
    assert "trial_02004" not in page
