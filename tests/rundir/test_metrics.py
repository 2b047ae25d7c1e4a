from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpctrain.rundir.metrics import find_last_report, read_last_report, read_reports
from hpctrain.rundir.paths import RunPaths


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return RunPaths(tmp_path)


def write(paths: RunPaths, *reports: tuple[int, int], torn: str = "") -> None:
    lines = [
        json.dumps({"attempt": a, "report": n, "time": 0, "metrics": {}}) + "\n" for a, n in reports
    ]
    paths.metrics.write_text("".join(lines) + torn)


def numbers(paths: RunPaths) -> list[tuple[int, int]]:
    return [(report["attempt"], report["report"]) for report in read_reports(paths)]


def test_a_run_that_never_reported_has_no_reports(paths: RunPaths):
    assert read_reports(paths) == []


def test_reports_of_one_attempt_come_back_in_order(paths: RunPaths):
    write(paths, (1, 1), (1, 2), (1, 3))
    assert numbers(paths) == [(1, 1), (1, 2), (1, 3)]


def test_after_a_resume_the_last_word_on_a_report_counts(paths: RunPaths):
    write(paths, (1, 1), (1, 2), (1, 3), (2, 2), (2, 3), (2, 4))
    assert numbers(paths) == [(1, 1), (2, 2), (2, 3), (2, 4)]


def test_what_a_dead_attempt_reported_beyond_the_next_one_is_dropped(paths: RunPaths):
    write(paths, (1, 1), (1, 2), (1, 3), (1, 4), (2, 2))
    assert numbers(paths) == [(1, 1), (2, 2)]


def test_an_attempt_from_the_beginning_drops_all_before_it(paths: RunPaths):
    write(paths, (1, 1), (1, 2), (2, 1))
    assert numbers(paths) == [(2, 1)]


def test_a_torn_line_is_left_out_wherever_it_stands(paths: RunPaths):
    write(paths, (1, 1), torn='{"attempt": 1, "rep')
    assert numbers(paths) == [(1, 1)]
    with open(paths.metrics, "a") as file:
        file.write('\n{"attempt": 2, "report": 2, "time": 0, "metrics": {}}\n')
    assert numbers(paths) == [(1, 1), (2, 2)]


def test_what_an_attempt_reports_beside_its_successor_is_left_out(paths: RunPaths):
    write(paths, (1, 1), (1, 2), (1, 3), (2, 2), (1, 4), (2, 3), (1, 5))
    assert numbers(paths) == [(1, 1), (2, 2), (2, 3)]


@pytest.mark.parametrize("torn", ["", '{"attempt": 1, "histogram": [' + "0, " * 300_000])
def test_the_last_report_is_found_however_long_its_line_is(
    paths: RunPaths, capsys: pytest.CaptureFixture[str], torn: str
):
    write(paths, (1, 1))
    long = {"attempt": 1, "report": 2, "time": 0, "metrics": {"histogram": [0] * 300_000}}
    with open(paths.metrics, "a") as file:
        file.write(json.dumps(long) + "\n" + torn)
    last = read_last_report(paths)
    assert last is not None
    assert last["report"] == 2
    assert "damaged" not in capsys.readouterr().err


def test_a_last_line_that_is_damaged_is_named(paths: RunPaths, capsys: pytest.CaptureFixture[str]):
    write(paths, (1, 1), torn="x" * 300_000 + "\n")
    assert read_last_report(paths) is None
    assert "the last line is damaged" in capsys.readouterr().err


def test_the_last_report_that_is_wanted_is_that_of_all_reports_wherever_it_stands(
    paths: RunPaths, each_example: Callable[[Callable[[Any], None]], None]
) -> None:
    def is_wanted(report: Any) -> bool:
        return "loss" in report["metrics"]

    def check(rng: np.random.Generator) -> None:
        lines, report = [], 0
        for attempt in range(1, 5):
            report = int(rng.integers(report + 1))
            for _ in range(rng.integers(12)):
                report += 1
                metrics = {"loss": 1.0} if rng.random() < 0.1 else {"text": 10_000 * "x"}
                line = {"attempt": attempt, "report": report, "time": 0, "metrics": metrics}
                lines.append(json.dumps(line) + "\n")
        paths.metrics.write_text("".join(lines) + "{"[: rng.integers(2)])
        expected = next(filter(is_wanted, reversed(read_reports(paths))), None)
        assert find_last_report(paths, is_wanted) == expected

    each_example(check)


def test_what_stood_still_and_writes_late_hides_no_report_of_its_successor(paths: RunPaths) -> None:
    write(paths, (1, 1), *((2, number) for number in range(2, 3000)), (1, 2), (2, 3000))
    last = find_last_report(paths, lambda report: True)
    assert last is not None
    assert (last["attempt"], last["report"]) == (2, 3000)


def test_what_stood_still_and_writes_late_is_not_found_in_the_end_of_the_file(paths: RunPaths):
    write(paths, (1, 1), *((2, number) for number in range(2, 3000)), (1, 2), (2, 3000))
    first = find_last_report(paths, lambda report: report["attempt"] == 1)
    assert first is not None
    assert first["report"] == 1
