"""The median stopping rule decides by all reports, and looks at few of them."""

from __future__ import annotations

import math
import pickle
import statistics
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hpctrain.tune.schedulers import MedianStoppingRule


def make(**options: Any) -> MedianStoppingRule:
    given = {"grace_period": 3.0, "min_samples_required": 2, **options}
    return MedianStoppingRule("t", "m", "max", **given)


class _ByDefinition:
    """The rule without anything kept of earlier reports but themselves."""

    def __init__(self) -> None:
        self.seen: dict[str, list[tuple[float, float]]] = {}

    def on_result(self, name: str, when: float, value: float) -> str:
        own = self.seen.setdefault(name, [])
        own.append((when, value))
        others = [seen for other, seen in self.seen.items() if other != name]
        inside = [
            [each for at, each in seen if 3 <= at <= when] for seen in others if seen[-1][0] >= when
        ]
        averages = [
            math.fsum(each) / len(each) for each in inside if each and all(map(math.isfinite, each))
        ]
        if when < 3 or len(averages) < 2:
            return "CONTINUE"
        best = max(each for _, each in own)
        return "STOP" if max(statistics.median(averages), best) != best else "CONTINUE"


def test_the_decisions_are_those_of_the_definition_whatever_comes_in_which_order(
    each_example: Callable[[Callable[[Any], None]], None],
) -> None:
    def check(rng: np.random.Generator) -> None:
        rule, expected = make(), _ByDefinition()
        times = dict.fromkeys("abcde", 0)
        for _ in range(60):
            name = "abcde"[rng.integers(5)]
            # One that begins anew reports the same times again.
            times[name] = 1 if rng.random() < 0.05 else times[name] + int(rng.integers(3))
            value = float(rng.choice([0.1, 0.2, 0.7, 1e300, math.nan, -math.inf], p=_SHARES))
            decision = rule.on_result(name, {"t": times[name], "m": value})
            assert decision == expected.on_result(name, times[name], value)

    each_example(check)


_SHARES = [0.3, 0.3, 0.3, 0.04, 0.03, 0.03]


def test_values_that_are_too_large_to_add_up_end_no_sweep() -> None:
    rule = make(min_samples_required=1)
    for when in (3, 4, 5):
        assert rule.on_result("a", {"t": when, "m": 1e308}) == "CONTINUE"
    assert rule.on_result("b", {"t": 5, "m": 1.0}) == "CONTINUE"


def test_a_rule_that_an_older_version_has_pickled_is_restored() -> None:
    rule = make(min_samples_required=1)
    # What it knew of its trials had another name.
    del rule._curves
    restored = pickle.loads(pickle.dumps(rule))
    restored.set_search_properties(None, None)
    assert restored.on_result("a", {"t": 3, "m": 1.0}) == "CONTINUE"
    assert restored.on_result("b", {"t": 3, "m": 0.5}) == "STOP"


@pytest.mark.parametrize("begin_anew", [False, True])
def test_a_decision_takes_no_more_steps_after_more_reports(*, begin_anew: bool) -> None:
    def count_steps(num_reports: int) -> int:
        rule, steps = make(), 0
        times = [*range(num_reports), *range((num_reports - 1) * begin_anew)]
        for when in times:
            # All averages are asked for each time.
            for name in "abcda":
                rule.on_result(name, {"t": when, "m": 0.5})

        def note(frame: Any, event: str, argument: Any) -> Any:
            nonlocal steps
            steps += 1
            return note

        before = sys.gettrace()
        sys.settrace(note)
        try:
            rule.on_result("a", {"t": times[-1], "m": 0.5})
            rule.on_result("b", {"t": times[-1], "m": 0.5})
        finally:
            sys.settrace(before)
        return steps

    assert count_steps(500) < 2 * count_steps(50)
