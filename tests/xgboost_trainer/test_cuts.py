"""Where features are cut into bins, against XGBoost's own choice in one process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("xgboost")

from xgboost import QuantileDMatrix

from hpctrain.testing.thread_comm import run_on_threads
from hpctrain.xgboost.cuts import cut_by_quantiles

Array = np.ndarray[Any, Any]


def cuts_over_ranks(matrix: Array, ends: list[int], *, max_bin: int = 256) -> list[Array]:
    parts = np.split(matrix, ends)
    matrices = run_on_threads(
        len(parts),
        lambda comm: cut_by_quantiles(parts[comm.rank], comm, max_bin=max_bin, nthread=1),
    )
    return by_feature(matrices[-1])


def by_feature(matrix: Any) -> list[Array]:
    places, values = matrix.get_quantile_cut()
    return np.split(values, places[1:-1].astype(int))


@pytest.mark.parametrize(("distinct", "max_bin"), [(3, 16), (100, 16), (100, 256), (2000, 256)])
def test_a_feature_with_few_values_is_cut_as_in_one_process(distinct: int, max_bin: int) -> None:
    random = np.random.default_rng(5)
    matrix = random.exponential(distinct / 5, (30_000, 4)).astype(np.float32)
    matrix = np.minimum(np.floor(matrix), distinct - 1)
    matrix[random.random(matrix.shape) < 0.1] = np.nan
    alone = by_feature(QuantileDMatrix(matrix, max_bin=max_bin, nthread=1))
    ours = cuts_over_ranks(matrix, [100, 17_000], max_bin=max_bin)
    for mine, theirs in zip(ours, alone, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_bins_of_sorted_rows_hold_equally_many_rows_to_an_eighth() -> None:
    values = np.sort(np.random.default_rng(6).standard_normal(100_000).astype(np.float32))
    (cuts,) = cuts_over_ranks(values[:, None], [20_000, 70_000])
    bins = np.bincount(np.searchsorted(cuts[1:-1], values, side="right"))
    assert len(bins) == 256
    assert abs(bins / (len(values) / 256) - 1).max() < 2 / 8


def test_features_without_values_and_ranks_without_rows_are_cut_too() -> None:
    matrix = np.full((50, 2), np.nan, dtype=np.float32)
    matrix[:, 1] = np.arange(50) % 5
    alone = by_feature(QuantileDMatrix(matrix, nthread=1))
    for mine, theirs in zip(cuts_over_ranks(matrix, [0, 50]), alone, strict=True):
        np.testing.assert_array_equal(mine, theirs)
