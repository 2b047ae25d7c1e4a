"""When patience ends."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from hpctrain.gbdt import EarlyStopping
from hpctrain.gbdt.rounds import Patience


def test_the_best_value_is_that_of_the_definition_with_nan_and_restarts_anywhere(
    each_example: Callable[[Callable[[Any], None]], None],
) -> None:
    def example(chosen: np.random.Generator) -> None:
        rounds, larger = int(chosen.integers(1, 6)), bool(chosen.integers(2))
        values = chosen.integers(0, 30, 25).astype(float)
        values[chosen.random(25) < chosen.choice([0, 0.3, 0.9])] = math.nan
        config = EarlyStopping(rounds=rounds, metric="m", mode="max" if larger else "min")
        patience = Patience(config)
        best = 1
        for number, value in enumerate(values.tolist(), start=1):
            if chosen.random() < 0.2:
                patience = Patience(config, json.loads(json.dumps(patience.state)))
            before = values[best - 1]
            gain = value - before if larger else before - value
            if (math.isnan(before) and not math.isnan(value)) or gain > 0:
                best = number
            is_over = patience.is_over({"m": value}, number, maximize=lambda name: False)
            assert patience.best_round == best
            assert is_over == (number - best >= rounds)

    each_example(example)
