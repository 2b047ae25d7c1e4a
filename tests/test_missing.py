"""Which values of a column are missing, of any type that a column can have."""

from __future__ import annotations

import decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from hpctrain.missing import is_missing


@pytest.mark.parametrize(
    "value",
    [
        *(None, float("nan"), np.float16("nan"), np.float64("nan"), complex(0, float("nan"))),
        *(pd.NA, pd.NaT, np.datetime64("NaT"), np.timedelta64("NaT"), decimal.Decimal("NaN")),
    ],
    ids=repr,
)
def test_what_stands_for_no_value_is_missing(value: Any) -> None:
    assert is_missing(value) is True


@pytest.mark.parametrize(
    "value",
    [
        *(0, 0.0, False, "", b"", "nan", float("inf"), np.str_(""), np.datetime64("2026-01-01")),
        # None of them is compared with itself: that would be an array, or an error.
        *([], [float("nan")], (), (np.array([1.0, 2.0]),), {}, {"a": np.zeros(2)}),
        *(np.zeros(0), np.array([1.0, np.nan]), pd.Series([1.0, np.nan]), torch.full((2,), np.nan)),
    ],
    ids=lambda value: f"{type(value).__name__} {value!r}"[:40],
)
def test_what_is_a_value_is_not(value: Any) -> None:
    assert is_missing(value) is False
