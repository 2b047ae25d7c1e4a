from __future__ import annotations

import pytest

from hpctrain.rundir.display import format_elapsed, format_metrics, format_value, shorten

MANY = {"loss": 0.5, "val": {"loss": 1.0, "top": {"5": 2}}, "note": "x" * 50}


def test_nested_metrics_have_the_path_as_their_name() -> None:
    assert format_metrics(MANY, width=80) == "loss=0.5  val/loss=1  val/top/5=2  note=xxxxxx…xxxxx"
    assert format_metrics(MANY, most=2) == "loss=0.5  val/loss=1  ..."


def test_a_text_is_whole_where_there_is_room() -> None:
    url = "http://node1.cluster.example:40873"
    assert format_metrics({"url": url, "ready": True}) == f"url={url}  ready=True"


@pytest.mark.parametrize("width", range(9, 60))
def test_metrics_fit_the_width_and_one_is_shown(width: int) -> None:
    shown = format_metrics(MANY, width=width)
    assert len(shown) <= width
    assert shown.startswith("loss=0.5")


def test_what_a_user_reports_moves_no_cursor() -> None:
    assert format_metrics({"a\x1b[2J\n": "\r\x07"}) == "a [2J =  "


def test_a_text_that_is_too_long_loses_its_middle() -> None:
    assert shorten("0123456789", 10) == "0123456789"
    assert shorten("0123456789", 5) == "01…89"


def test_a_number_without_end_has_six_digits() -> None:
    assert format_metrics({"n": 10**399, "m": -(7**500)}) == "n=1.00000e+399  m=-3.54014e+422"
    # Nothing is left out of what may be an identity.
    assert format_value(2**64 - 1) == "18446744073709551615"
    assert [format_value(value) for value in (True, 3, 2.5)] == ["True", "3", "2.5"]


def test_more_than_a_day_is_counted_in_days_as_slurm_does() -> None:
    assert [format_elapsed(seconds) for seconds in (5, 3725, 86399, 86400, 3 * 86400 + 3725)] == [
        *("0:05", "1:02:05", "23:59:59", "1-00:00:00", "3-01:02:05"),
    ]
