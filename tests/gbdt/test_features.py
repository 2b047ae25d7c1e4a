"""From batches to the matrix that a model sees."""

from __future__ import annotations

import numpy as np
import pytest

from hpctrain import CheckpointError, ConfigError
from hpctrain.gbdt import Features


def test_columns_are_put_in_the_order_of_the_model_whatever_the_order_of_the_batch():
    features = Features(names=("a", "x_0", "x_1", "b"))
    batch = {
        "b": np.array([1, 2]),
        "note": np.array(["no", "feature"]),
        "x": np.array([[3.0, 4.0], [5.0, 6.0]]),
        "a": np.array([True, False]),
    }
    assert features.matrix(batch).tolist() == [[1, 3, 4, 1], [0, 5, 6, 2]]
    assert Features(names=("x_1", "a")).matrix(batch).tolist() == [[4, 1], [6, 0]]
    assert Features(names=("x_1", "x_0")).matrix(batch).tolist() == [[4, 3], [6, 5]]


def test_a_matrix_that_is_there_is_filled():
    room = np.zeros((3, 1))
    Features(names=("a",)).matrix({"a": np.array([7, 8])}, out=room[1:])
    assert room.tolist() == [[0], [7], [8]]


def test_categories_become_their_places_and_others_are_missing():
    pandas = pytest.importorskip("pandas")
    features = Features(names=("c",), categories={"c": ("blue", "red")})
    for values in (
        np.array(["red", "green", "blue"]),
        np.array([b"red", b"green", b"blue"]),
        pandas.Series(["red", None, "blue"]),
        pandas.Series(["red", None, "blue"], dtype="category"),
    ):
        matrix = features.matrix({"c": values})
        np.testing.assert_array_equal(matrix, [[1], [np.nan], [0]])


def test_what_is_missing_in_pandas_is_missing_for_the_model():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": pandas.array([1, None], dtype="Int64"), "b": [None, 2.5]})
    matrix = Features(names=("a", "b")).matrix(frame)
    np.testing.assert_array_equal(matrix, [[1, np.nan], [np.nan, 2.5]])


def test_a_feature_that_vanished_and_text_that_nobody_named_are_errors():
    with pytest.raises(ConfigError, match=r"features \['b'\] are missing"):
        Features(names=("a", "b")).matrix({"a": np.array([1])})
    with pytest.raises(ConfigError, match=r"column 'a' holds .*its first value is 'x'"):
        Features(names=("a",)).matrix({"a": np.array(["x"])})


def test_features_are_written_beside_a_model_and_read_again(tmp_path):
    features = Features(names=("a", "c"), label="y", categories={"c": ("blue", "red")})
    features.write(tmp_path, framework="xgboost")
    assert Features.read(tmp_path, framework="xgboost") == features
    with pytest.raises(CheckpointError, match="a checkpoint of xgboost, not of lightgbm"):
        Features.read(tmp_path, framework="lightgbm")


def test_texts_are_no_numbers_wherever_they_are():
    pandas = pytest.importorskip("pandas")
    for values in (
        np.array([1] * 200 + ["2"], dtype=object),
        np.array([b"007", b"12"], dtype=object),
        pandas.Series(["007", "12"], dtype="str"),
        pandas.Series(["007", None], dtype="string"),
    ):
        with pytest.raises(ConfigError, match="column 'a' holds object, not numbers"):
            Features(names=("a",)).matrix({"a": values})


def test_a_value_that_stands_for_missing_ones_is_nan_in_the_matrix(tmp_path):
    features = Features(names=("a", "b"), missing=-1)
    matrix = features.matrix({"a": np.array([-1, 2]), "b": np.array([0.5, -1])})
    np.testing.assert_array_equal(matrix, [[np.nan, 0.5], [2, np.nan]])
    features.write(tmp_path, framework="xgboost")
    assert Features.read(tmp_path, framework="xgboost") == features


def test_no_rows_make_a_matrix_without_rows():
    batch = {"a": np.zeros(0), "x": np.zeros((0, 2))}
    assert Features(names=("a", "x_0", "x_1")).matrix(batch).shape == (0, 3)
