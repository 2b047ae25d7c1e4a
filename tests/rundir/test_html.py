from __future__ import annotations

import json
import math
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from hpctrain.result import Result
from hpctrain.rundir.html import render_run
from hpctrain.rundir.paths import RunPaths
from hpctrain.rundir.states import RunState
from hpctrain.rundir.status import RunStatus, write_status

HOSTILE = '<script>alert("x")</script>\'"&'
_VOID = ("br", "polyline")


class Page(HTMLParser):
    """Tags and text of a page whose tags match."""

    def __init__(self, content: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(content)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def page(history: list[dict[str, Any]], **details: Any) -> Page:
    given = {"name": "r", "state": "finished", "facts": {}, "error": None, **details}
    return Page(render_run(history=history, **given))


def test_each_metric_of_numbers_has_a_curve_and_every_metric_a_row() -> None:
    shown = page([{"loss": 1 / n, "val": {"acc": n}, "note": "x"} for n in range(1, 6)])
    assert shown.tags.count("polyline") == 2
    assert "loss: 0.2" in shown.text
    assert "val/acc: 5" in shown.text
    assert "1 to 5, reports 1 to 5" in shown.text
    assert shown.tags.count("tr") == 4


def test_what_a_user_has_written_is_text_and_nothing_else() -> None:
    shown = page(
        [{HOSTILE: n, "value": HOSTILE} for n in range(3)],
        name=HOSTILE,
        facts={"checkpoint": HOSTILE},
        error=HOSTILE,
    )
    assert "script" not in shown.tags
    assert shown.text.count(HOSTILE) >= 4
    assert {name for name, _ in shown.attributes} <= {
        *("style", "role", "width", "height", "viewbox", "fill"),
        *("stroke", "stroke-width", "points"),
    }


@pytest.mark.parametrize(
    "values",
    [
        [math.nan, math.inf, 1.0, 2.0],
        [1e308, -1e308, 0.0],
        [10**400, 1, 2],
        [3, 3, 3],
        [True, 1, 2],
        [None, 1, 2],
        [1],
        [],
    ],
)
def test_values_that_cannot_be_drawn_are_left_out(values: list[Any]) -> None:
    shown = page([{"x": value} for value in values])
    for name, value in shown.attributes:
        if name == "points" and value is not None:
            numbers = [float(part) for point in value.split() for part in point.split(",")]
            assert all(map(math.isfinite, numbers))
            assert all(-1 <= number <= 221 for number in numbers)


def test_a_long_run_with_many_metrics_is_small() -> None:
    content = render_run(
        name="r",
        state="finished",
        facts={},
        history=[{f"m{k}": n * k for k in range(100)} for n in range(5000)],
        error=None,
    )
    assert len(content) < 40_000
    assert "and 80 more" in content
    assert "reports 25 to 5000" in content, "the last report is drawn"


def test_a_result_is_shown_in_a_notebook(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path)
    status = RunStatus(
        name="run",
        state=RunState.FAILED,
        launcher="local",
        nodes=("n1", "n2"),
        checkpoint="000002",
        error="rank 1 of 2 on n1 failed: ValueError: <loss>",
        error_type="WorkerError",
    )
    write_status(paths, status)
    with open(paths.metrics, "w") as file:
        for n in (1, 2):
            line = {"report": n, "attempt": 1, "time": 0, "checkpoint": None}
            print(json.dumps({**line, "metrics": {"loss": 1 / n}}), file=file)
    shown = Page(Result.from_path(tmp_path)._repr_html_())
    for expected in ("run failed", "n[1-2]", "000002", "ValueError: <loss>", "loss: 0.5"):
        assert expected in shown.text
