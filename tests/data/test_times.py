"""Times that are compared, sorted and looked up."""

from __future__ import annotations

import datetime
from collections.abc import Callable

import numpy as np

from hpctrain.data.times import as_time, nanoseconds, times_of

Examples = Callable[[Callable[[np.random.Generator], None]], None]


def test_times_are_the_same_in_any_unit(each_example: Examples) -> None:
    def check(rng: np.random.Generator) -> None:
        days = rng.integers(-200_000, 2_000_000, 4).astype("M8[D]")
        units = ["D", "h", "s", "ms", "us"]
        if (np.abs(days.astype(int)) < 100_000).all():
            units.append("ns")
        found = [times_of(days.astype(f"M8[{unit}]")) for unit in units]
        assert all(times == found[0] for times in found)
        assert len({tuple(map(hash, times)) for times in found}) == 1
        objects = [as_time(day) for day in days.tolist() if isinstance(day, datetime.date)]
        assert set(objects) <= set(found[0])
        in_order = sorted(set(found[0]), key=nanoseconds)
        assert in_order == [as_time(day) for day in np.unique(days)]

    each_example(check)
