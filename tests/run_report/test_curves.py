"""Curves of a bounded number of points, that keep what can be seen of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from hpctrain.run_report.curves import points_of_each, read_metrics, thin


def test_a_short_curve_is_kept_as_it_is() -> None:
    assert thin([1, 2, 3], [5.0, math.nan, math.inf], most=5) == [(1, 5.0), (2, None), (3, None)]
    assert thin([], []) == []


def test_a_thinned_curve_keeps_extremes_ends_and_gaps(each_example: Callable[..., None]) -> None:
    def check(random: Any) -> None:
        size, most = int(random.integers(1, 4000)), int(random.integers(5, 900))
        y = random.normal(size=size)
        y[random.random(size) < random.choice([0.0, 0.01, 0.6])] = math.nan
        y[random.random(size) < random.choice([0.0, 0.01])] = math.inf
        x = random.choice(10**6, size=size, replace=False)
        x.sort()
        points = thin(x.tolist(), y.tolist(), most=most)
        assert len(points) <= most
        places = [place for place, _ in points]
        assert places == sorted(set(places))
        known = dict(zip(x.tolist(), y.tolist(), strict=True))
        for place, value in points:
            assert value == known[place] if value is not None else not math.isfinite(known[place])
        assert (places[0], places[-1]) == (x[0], x[-1])
        finite = y[[math.isfinite(value) for value in y]]
        shown = [value for _, value in points if value is not None]
        if len(finite):
            assert (min(shown), max(shown)) == (finite.min(), finite.max())
        else:
            assert shown == []
        # A gap is shown as one.
        assert (None in dict(points).values()) == (len(finite) < size)

    each_example(check)


def test_every_part_of_a_thinned_curve_keeps_its_own_extremes() -> None:
    size, most = 9000, 902
    y = [math.sin(n / 50) for n in range(size)]
    spikes = {4 * size // 7: 50.0, 5 * size // 7: -50.0}
    for place, value in spikes.items():
        y[place] = value
    shown = dict(thin(range(size), y, most=most))
    assert {place: shown.get(place) for place in spikes} == spikes


def test_a_page_has_a_bounded_number_of_points() -> None:
    for num_curves in (0, 1, 100, 2000, 6000):
        assert num_curves * points_of_each(num_curves) <= 400_000
    assert points_of_each(10**6) == 60


def report(number: int, **metrics: Any) -> dict[str, Any]:
    return {"report": number, "metrics": metrics}


def test_metrics_that_are_numbers_are_curves_and_others_texts() -> None:
    found = read_metrics(
        [
            report(1, loss=3, val={"acc": 0.5}, note="a", done=False),
            report(2, loss=math.nan, val={"acc": "broken"}, note="b", done=True),
            report(4, loss=-1.5, sizes=[1, 2], large=10**400),
        ]
    )
    loss, acc, large = found.curves
    assert (loss.name, list(loss.reports)) == ("loss", [1, 2, 4])
    assert (loss.least, loss.most, loss.last, loss.num_not_finite) == ((4, -1.5), (1, 3.0), -1.5, 1)
    assert (acc.name, list(acc.values)) == ("val/acc", [0.5])
    assert (large.name, list(large.values), large.least, large.last) == (
        "large",
        [math.inf],
        None,
        None,
    )
    assert found.texts == {"note": "b", "done": "True", "val/acc": "broken", "sizes": "[1, 2]"}


def test_no_report_has_no_metrics() -> None:
    assert read_metrics([]).curves == ()


@pytest.mark.parametrize("most", [5, 6, 7])
def test_the_fewest_points_still_have_both_extremes(most: int) -> None:
    shown = [value for _, value in thin(range(100), [*range(50), -9, 99, *range(48)], most=most)]
    assert {-9, 99} <= set(shown)
