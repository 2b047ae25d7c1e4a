from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from hpctrain import ConfigError
from hpctrain.predict.feature_columns import (
    columns_of_features,
    feature_matrix,
    select_frame,
    select_matrix,
)

X = np.arange(12.0).reshape(4, 3)


def test_a_single_column_that_is_all_features_is_not_copied():
    assert np.shares_memory(feature_matrix({"x": X}, ["x_0", "x_1", "x_2"]), X)


def test_columns_are_put_into_the_order_of_the_model():
    matrix = feature_matrix({"b": X[:, 1], "x": X[:, :1], "a": X[:, 2]}, ["a", "x_0", "b"])
    assert np.array_equal(matrix, X[:, [2, 0, 1]])


def test_components_of_a_column_may_lie_apart_in_the_model():
    matrix = feature_matrix({"x": X[:, :2], "b": X[:, 2]}, ["x_1", "b", "x_0"])
    assert np.array_equal(matrix, X[:, [1, 2, 0]])


def test_a_feature_that_has_vanished_is_named():
    with pytest.raises(ConfigError, match="has no 'c', which the model was trained on"):
        feature_matrix({"a": X[:, 0], "b": X[:, 1]}, ["a", "b", "c"])


def test_a_feature_that_appears_is_named():
    with pytest.raises(ConfigError, match="has 'c', which the model was not trained on"):
        feature_matrix({"a": X[:, 0], "c": X[:, 1]}, ["a"])


def test_a_wider_column_is_a_feature_that_appears():
    with pytest.raises(ConfigError, match="has 'x_2', which the model was not trained on"):
        feature_matrix({"x": X}, ["x_0", "x_1"])


@pytest.mark.parametrize("names", [["f0", "f1", "f2"], ["Column_0", "Column_1", "Column_2"]])
def test_a_model_without_names_takes_columns_as_they_come(names):
    batch = {"z": X[:, 0], "a": X[:, 1:]}
    assert np.array_equal(feature_matrix(batch, names), X)
    columns = {"z": (), "a": (2,), "y": ()}
    assert columns_of_features(columns, names, ignore=["y"]) == ["z", "a"]
    with pytest.raises(ConfigError, match="which the model was trained on"):
        feature_matrix({"z": X[:, 0]}, names)


def test_the_label_may_be_there():
    columns = {"x": (3,), "y": ()}
    assert columns_of_features(columns, ["x_0", "x_1", "x_2"], ignore=["y"]) == ["x"]


def test_an_array_has_to_be_as_wide_as_the_model():
    assert select_matrix(X, ["a", "b"], [2, 0]).tolist() == X[:, [2, 0]].tolist()
    with pytest.raises(ConfigError, match="3 columns, but the model was trained on 2 features"):
        select_matrix(X, ["a", "b"])


def test_a_frame_keeps_its_types():
    frame = pd.DataFrame({"b": pd.Categorical(["u", "v"]), "a": [1.0, 2.0], "c": [0, 0]})
    selected = select_frame(frame, ["a", "b"], ["a", "b"])
    assert list(selected.columns) == ["a", "b"]
    assert selected["b"].dtype == "category"
    with pytest.raises(ConfigError, match="has 'c'"):
        select_frame(frame, ["a", "b"])
