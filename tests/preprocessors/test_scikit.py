from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sklearn.decomposition
import sklearn.feature_selection
import sklearn.preprocessing
from numpy.testing import assert_allclose, assert_array_equal

from hpctrain.errors import ConfigError
from hpctrain.preprocessors import SklearnPreprocessor


@pytest.fixture
def table(random: np.random.Generator) -> np.ndarray:
    return random.normal(size=(300, 3))


def as_columns(table: np.ndarray) -> dict[str, np.ndarray]:
    return {"a": table[:, 0], "v": table[:, 1:]}


@pytest.mark.parametrize(
    "transformer",
    [
        sklearn.preprocessing.StandardScaler(),
        sklearn.preprocessing.QuantileTransformer(n_quantiles=50, random_state=0),
        sklearn.preprocessing.PowerTransformer(),
    ],
)
def test_a_transformer_learns_from_the_rows_of_all_ranks(fit_on_ranks, table, transformer):
    expected = sklearn.base.clone(transformer).fit_transform(table)
    fitted = fit_on_ranks(lambda: SklearnPreprocessor(transformer, ["a", "v"]), as_columns(table))
    made = fitted.transform_batch(as_columns(table))
    assert made["v"].shape == (300, 2)
    assert_allclose(np.column_stack([made["a"], made["v"]]), expected, rtol=1e-9, atol=1e-12)


def test_another_number_of_values_goes_into_a_column_of_its_own(fit_on_ranks, table):
    pca = sklearn.decomposition.PCA(2)
    fitted = fit_on_ranks(
        lambda: SklearnPreprocessor(pca, ["a", "v"], output_column="parts"), as_columns(table)
    )
    made = fitted.transform_batch(as_columns(table))
    assert list(made) == ["a", "v", "parts"]
    expected = sklearn.decomposition.PCA(2).fit_transform(table)
    assert_allclose(np.abs(made["parts"]), np.abs(expected), rtol=1e-9, atol=1e-12)
    assert fitted.transform_batch(as_columns(table[:0]))["parts"].shape == (0, 2)
    in_place = SklearnPreprocessor(pca, ["a", "v"]).fit(as_columns(table))
    with pytest.raises(
        ConfigError, match=r"PCA returns 2 values per row for the 3 .*output_column="
    ):
        in_place.transform_batch(as_columns(table))


def test_sparse_results_and_text_are_taken(fit_on_ranks):
    batch = {"c": np.array(["red", "blue", "red", "teal"], dtype=object)}
    encoder = sklearn.preprocessing.OneHotEncoder()
    fitted = fit_on_ranks(lambda: SklearnPreprocessor(encoder, ["c"], output_column="v"), batch)
    assert_array_equal(fitted.transform_batch(batch)["v"].argmax(axis=1), [1, 0, 1, 2])


def test_labels_are_passed_to_those_who_learn_from_them(fit_on_ranks, table):
    batch = {**as_columns(table), "y": (table[:, 2] > 0).astype(int)}
    select = sklearn.feature_selection.SelectKBest(k=1)
    fitted = fit_on_ranks(
        lambda: SklearnPreprocessor(select, ["a", "v"], output_column="best", label_column="y"),
        batch,
    )
    made = fitted.transform_batch(as_columns(table))
    assert_array_equal(made["best"][:, 0], table[:, 2])


def test_the_transformer_that_was_given_stays_unfitted(table):
    given = sklearn.preprocessing.StandardScaler()
    SklearnPreprocessor(given, ["a", "v"]).fit(as_columns(table))
    assert not hasattr(given, "mean_")


def test_what_scikit_learn_refuses_is_refused_on_every_rank(fit_on_ranks):
    batch = {"c": np.array(["red", "blue", "red"], dtype=object)}
    with pytest.raises((ConfigError, ValueError), match="could not convert string to float"):
        fit_on_ranks(
            lambda: SklearnPreprocessor(sklearn.preprocessing.StandardScaler(), ["c"]), batch
        )


def test_what_is_no_transformer_is_refused():
    estimator: Any = object()
    with pytest.raises(ConfigError, match=r"has no fit\(\) and transform\(\)"):
        SklearnPreprocessor(estimator, ["x"])
