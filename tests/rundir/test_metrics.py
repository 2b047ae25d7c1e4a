from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpctrain.rundir.metrics import read_last_report, read_reports
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
