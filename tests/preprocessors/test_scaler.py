from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import sklearn.preprocessing
from numpy.testing import assert_allclose, assert_array_equal

from hpctrain.errors import ConfigError
from hpctrain.preprocessors import MaxAbsScaler, MinMaxScaler, RobustScaler, StandardScaler

TIGHT = 1e-9


@pytest.fixture
def table(random: np.random.Generator) -> np.ndarray:
    """Columns on very unlike scales, one far from 0, one constant, with values missing."""
    rows = random.normal(size=(1001, 5)) * [1, 1e-6, 1e6, 1, 0] + [3, 0, -5e6, 1e5, 0.1]
    rows[random.random(rows.shape) < 0.05] = np.nan
    return rows


def as_columns(table: np.ndarray) -> dict[str, np.ndarray]:
    return {f"c{i}": table[:, i] for i in range(table.shape[1])}


NAMES = [f"c{i}" for i in range(5)]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_mean_and_deviation_are_those_of_scikit_learn(fit_on_ranks, table, dtype):
    table = table.astype(dtype)
    reference = sklearn.preprocessing.StandardScaler().fit(table.astype("float64"))
    scaler = fit_on_ranks(lambda: StandardScaler(NAMES), as_columns(table))
    mean = [scaler.stats_[f"mean({name})"] for name in NAMES]
    std = [scaler.stats_[f"std({name})"] or 1.0 for name in NAMES]
    assert_allclose(mean, reference.mean_, rtol=TIGHT)
    assert_allclose(std, reference.scale_, rtol=TIGHT)
    scaled = scaler.transform_batch(as_columns(table))
    expected = reference.transform(table.astype("float64"))
    for i, name in enumerate(NAMES):
        assert scaled[name].dtype == dtype
        tolerance = 1e-6 if dtype == "float32" else 1e-9
        assert_allclose(scaled[name], expected[:, i], rtol=tolerance, atol=tolerance)


def test_the_components_of_a_column_of_arrays_are_scaled_one_by_one(fit_on_ranks, table):
    images = table[:, :4].reshape(-1, 2, 2)
    reference = sklearn.preprocessing.StandardScaler().fit(table[:, :4])
    scaler = fit_on_ranks(lambda: StandardScaler(["image"]), {"image": images})
    assert_allclose(scaler.stats_["mean(image)"].ravel(), reference.mean_, rtol=TIGHT)
    assert_allclose(scaler.stats_["std(image)"].ravel(), reference.scale_, rtol=TIGHT)
    assert scaler.transform_batch({"image": images[:3]})["image"].shape == (3, 2, 2)


def test_digits_survive_a_mean_a_million_deviations_away(fit_on_ranks, random):
    values = random.normal(size=5000) + 1e6
    exact = np.var(values.astype(np.longdouble))
    scaler = fit_on_ranks(lambda: StandardScaler(["x"]), {"x": values})
    assert_allclose(scaler.stats_["std(x)"] ** 2, float(exact), rtol=TIGHT)


def test_digits_survive_rows_that_are_sorted(fit_on_ranks, random):
    values = np.sort(random.normal(size=50_000)).astype("float32")
    scaler = fit_on_ranks(lambda: StandardScaler(["x"]), {"x": values})
    exact = values.astype(np.longdouble)
    assert_allclose(scaler.stats_["std(x)"], float(exact.std()), rtol=TIGHT)
    assert_allclose(scaler.stats_["mean(x)"], float(exact.mean()), rtol=TIGHT, atol=1e-15)


@pytest.mark.parametrize("width", [1, 3, 28, 1500])
def test_no_value_is_lost_where_rows_do_not_fill_a_chunk(width, random):
    for count in (1, 7, 1171, 40_001 if width < 28 else 2341):
        rows = random.integers(-5, 6, size=(count, width)).astype("int8")
        scaler = StandardScaler(["x"]).fit({"x": rows})
        assert_allclose(scaler.stats_["mean(x)"], rows.mean(axis=0), rtol=1e-12, atol=1e-14)
        assert_allclose(scaler.stats_["std(x)"], rows.std(axis=0), rtol=1e-12, atol=1e-14)


def test_rows_that_are_not_contiguous_are_the_same_rows(random):
    rows = np.asfortranarray(random.normal(size=(500, 6)))[::2, ::3]
    scaler = StandardScaler(["x"]).fit({"x": rows})
    assert_allclose(scaler.stats_["mean(x)"], rows.mean(axis=0), rtol=TIGHT)


def test_minimum_and_maximum_are_those_of_scikit_learn(fit_on_ranks, table):
    reference = sklearn.preprocessing.MinMaxScaler().fit(table)
    scaler = fit_on_ranks(lambda: MinMaxScaler(NAMES), as_columns(table))
    assert_array_equal([scaler.stats_[f"min({name})"] for name in NAMES], reference.data_min_)
    assert_array_equal([scaler.stats_[f"max({name})"] for name in NAMES], reference.data_max_)
    scaled, expected = scaler.transform_batch(as_columns(table)), reference.transform(table)
    for i, name in enumerate(NAMES):
        assert_allclose(scaled[name], expected[:, i], rtol=TIGHT, atol=1e-12)


def test_the_largest_absolute_value_is_that_of_scikit_learn(fit_on_ranks, table):
    reference = sklearn.preprocessing.MaxAbsScaler().fit(table)
    scaler = fit_on_ranks(lambda: MaxAbsScaler(NAMES), as_columns(table))
    assert_array_equal([scaler.stats_[f"abs_max({name})"] for name in NAMES], reference.max_abs_)
    scaled, expected = scaler.transform_batch(as_columns(table)), reference.transform(table)
    for i, name in enumerate(NAMES):
        assert_allclose(scaled[name], expected[:, i], rtol=TIGHT)


def test_quantiles_are_exact(fit_on_ranks, table):
    reference = sklearn.preprocessing.RobustScaler(quantile_range=(10, 90)).fit(table)
    scaler = fit_on_ranks(lambda: RobustScaler(NAMES, (0.1, 0.9)), as_columns(table))
    assert_allclose([scaler.stats_[f"median({n})"] for n in NAMES], reference.center_, rtol=TIGHT)
    stats = scaler.stats_
    spread = [stats[f"high_quantile({n})"] - stats[f"low_quantile({n})"] or 1.0 for n in NAMES]
    assert_allclose(spread, reference.scale_, rtol=TIGHT)
    scaled, expected = scaler.transform_batch(as_columns(table)), reference.transform(table)
    for i, name in enumerate(NAMES):
        assert_allclose(scaled[name], expected[:, i], rtol=TIGHT, atol=1e-12)


def test_a_scaler_writes_beside_its_columns_if_it_is_told_to(table):
    scaler = MinMaxScaler(["c0"], output_columns=["scaled"]).fit(as_columns(table))
    made = scaler.transform_batch(as_columns(table))
    assert list(made) == [*NAMES, "scaled"]
    assert made["c0"] is as_columns(table)["c0"] or made["c0"].base is table


def test_infinite_values_have_no_mean(table):
    table[500, 0] = np.inf
    with pytest.raises(ConfigError, match="column 'c0': values are infinite"):
        StandardScaler(["c0"]).fit(as_columns(table))


def test_text_has_no_mean():
    message = "column 'x': it holds text, but must hold numbers. Encode it first"
    with pytest.raises(ConfigError, match=message):
        StandardScaler(["x"]).fit({"x": np.array(["a", "b"])})


@pytest.mark.parametrize("make", [StandardScaler, MinMaxScaler, MaxAbsScaler, RobustScaler])
@pytest.mark.parametrize("values", [np.zeros(0), np.full(3, np.nan)])
def test_a_column_without_a_value_is_refused(make, values):
    with pytest.raises(ConfigError, match="column 'x' holds no value in any row of any rank"):
        make(["x"]).fit({"x": values})


def test_rows_of_another_shape_than_those_fitted_are_refused():
    scaler = StandardScaler(["x"]).fit({"x": np.ones((3, 2))})
    message = r"rows of shape \(3,\), but the scaler was fitted on rows of shape \(2,"
    with pytest.raises(ConfigError, match=message):
        scaler.transform_batch({"x": np.ones((3, 3))})


@pytest.mark.parametrize(
    "given",
    [(0.75, 0.25), (0.5, 0.5), (0.25,), (0.1, 0.5, 0.9), ("0.25", "0.75"), None, 0.5, (0, np.nan)],
)
def test_quantiles_that_are_no_range_are_refused(given: Any):
    with pytest.raises(
        ConfigError, match=rf"quantile_range={re.escape(repr(given))} is not two ascending numbers"
    ):
        RobustScaler(["x"], given)
