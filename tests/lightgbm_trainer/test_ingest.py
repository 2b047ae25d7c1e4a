"""Bins from a sample of the rows of all ranks."""

from __future__ import annotations

from typing import Any

import lightgbm
import numpy as np
import pytest

from hpctrain.gbdt.features import Features
from hpctrain.gbdt.table import Table
from hpctrain.lightgbm.ingest import DatasetMaker
from hpctrain.testing.thread_comm import run_on_threads


@pytest.mark.parametrize(
    ("rows", "positives", "params"),
    [
        # Some of the positives are in the sample, fewer than min_data_in_leaf, which is 20.
        (20_000, 200, {"bin_construct_sample_cnt": 1000}),
        (1000, 10, {"min_data_in_leaf": 2}),
    ],
)
def test_a_feature_with_few_positives_has_the_bins_that_lightgbm_alone_gives_it(
    rows: int, positives: int, params: dict[str, Any]
) -> None:
    matrix = np.zeros((rows, 2), np.float32)
    matrix[:, 0] = np.arange(rows) % 3
    matrix[:: rows // positives, 1] = 1
    label = matrix[:, 1].copy()
    params = {**params, "verbosity": -1, "num_threads": 1}
    names = ["common", "rare"]

    def count_bins(comm: Any) -> list[int]:
        maker = DatasetMaker(Features(names=tuple(names)), params, dtype=np.float32, comm=comm)
        mine = np.arange(comm.rank, rows, comm.size)
        made = maker.in_memory({"train": Table(matrix=matrix[mine], label=label[mine])})
        train = made["train"].construct()
        return [train.feature_num_bin(name) for name in names]

    alone = lightgbm.Dataset(matrix, label, feature_name=names, params=params).construct()
    expected = [alone.feature_num_bin(name) for name in names]
    assert expected[1] > 1
    assert run_on_threads(2, count_bins) == [expected, expected]
