from __future__ import annotations

import math

import pytest

from hpctrain.rundir.chart import draw_chart


def test_a_curve_falls_from_its_first_to_its_last_value() -> None:
    points = [(float(n), 8.0 - n) for n in range(8)]
    lines = draw_chart(points, width=19, height=1)
    assert lines == ["         1 █▇▆▅▄▃▂▁"]


def test_a_curve_is_as_high_and_as_wide_as_there_is_room() -> None:
    points = [(float(n), math.sin(n / 50)) for n in range(1000)]
    lines = draw_chart(points, width=60, height=6)
    assert len(lines) == 6
    assert {len(line) for line in lines} == {60}
    assert lines[0].split()[0].startswith("0.99")
    assert lines[-1].split()[0].startswith("-")


@pytest.mark.parametrize(
    ("points", "width", "height"),
    [([], 80, 5), ([(1.0, math.nan)], 80, 5), ([(1.0, 1.0)], 11, 5), ([(1.0, 1.0)], 80, 0)],
)
def test_what_has_no_room_or_no_value_is_not_drawn(
    points: list[tuple[float, float]], width: int, height: int
) -> None:
    assert draw_chart(points, width=width, height=height) == []


def test_values_that_are_equal_infinite_or_huge_are_drawn() -> None:
    assert draw_chart([(1.0, 5.0), (2.0, 5.0)], width=20, height=2)[-1].endswith("██")
    points = [(1.0, -1.7e308), (2.0, 1.7e308), (3.0, math.inf)]
    assert draw_chart(points, width=20, height=2)[0].endswith(" █")
