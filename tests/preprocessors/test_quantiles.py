from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from hpctrain.preprocessors import quantiles
from hpctrain.preprocessors.batches import rows_of, slices_of
from hpctrain.preprocessors.quantiles import quantiles_of
from hpctrain.testing.thread_comm import run_on_threads
from hpctrain.world import SerialComm

ASKED = (0.0, 0.001, 0.25, 1 / 3, 0.5, 0.75, 1.0)


@pytest.fixture
def values(random: np.random.Generator) -> np.ndarray:
    """Columns with ties, with both zeros, with tiny and huge numbers, and with few values."""
    columns = [
        random.normal(size=3000),
        random.integers(-3, 4, size=3000).astype(float),
        random.choice([0.0, -0.0, 5e-324, -5e-324, 1e300, 1.0], size=3000),
        np.where(random.random(3000) < 0.999, np.nan, 7.0),
        np.exp(random.normal(size=3000) * 100),
    ]
    return np.stack(columns, axis=1)


@pytest.mark.parametrize("gathered", [2**20, 8])
@pytest.mark.parametrize("counters", [2**22, 64])
@pytest.mark.parametrize("ranks", [1, 3])
def test_quantiles_are_those_of_numpy_however_little_memory_there_is(
    values: np.ndarray, ranks: int, counters: int, gathered: int, monkeypatch: Any
):
    monkeypatch.setattr(quantiles, "MAX_COUNTERS", counters)
    monkeypatch.setattr(quantiles, "MAX_GATHERED", gathered)

    def find(comm: Any) -> np.ndarray:
        shard = slices_of({"x": values[comm.rank :: ranks]}, 500)
        return quantiles_of(rows_of(shard, ["x"]), ["x"], ASKED, comm)["x"]

    expected = np.nanquantile(values, ASKED, axis=0)
    for found in run_on_threads(ranks, find):
        assert_array_equal(found, expected)


def test_two_passes_are_enough_for_a_few_million_values(random: np.random.Generator):
    batch = {"x": random.normal(size=(200_000, 3)).astype("float32")}
    passes = []

    def rows() -> Any:
        passes.append(1)
        return iter([batch])

    found = quantiles_of(rows, ["x"], (0.25, 0.5, 0.75), SerialComm())["x"]
    assert_array_equal(found, np.quantile(batch["x"].astype(float), (0.25, 0.5, 0.75), axis=0))
    assert len(passes) == 2
