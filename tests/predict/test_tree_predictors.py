"""XGBoost's and LightGBM's predictors, against what the libraries say themselves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import lightgbm
import numpy as np
import pandas as pd
import pytest
import xgboost

from hpctrain import Checkpoint, ConfigError
from hpctrain.lightgbm import LightGBMPredictor
from hpctrain.predict.features import ModelFeatures
from hpctrain.xgboost import XGBoostPredictor

NAMES = ["a", "b", "c"]
X = np.random.default_rng(0).normal(size=(400, 3)).astype("f4")
Y = (X[:, 0] + X[:, 1] * X[:, 2] > 0).astype("f4")


def train_xgboost(directory: Path, **params) -> Callable[[np.ndarray], np.ndarray]:
    data = xgboost.DMatrix(X, Y, feature_names=NAMES)
    booster = xgboost.train({"objective": "binary:logistic", "max_depth": 3, **params}, data, 8)
    booster.save_model(directory / "model.ubj")
    ModelFeatures(framework="xgboost", features=tuple(NAMES), label="y").write(directory)
    return lambda x: booster.predict(xgboost.DMatrix(x, feature_names=NAMES))


def train_lightgbm(directory: Path) -> Callable[[np.ndarray], np.ndarray]:
    data = lightgbm.Dataset(X, Y, feature_name=NAMES)
    booster = lightgbm.train({"objective": "binary", "verbose": -1}, data, 8)
    booster.save_model(directory / "model.txt")
    ModelFeatures(framework="lightgbm", features=tuple(NAMES), label="y").write(directory)
    return booster.predict


CASES = [(XGBoostPredictor, train_xgboost), (LightGBMPredictor, train_lightgbm)]
both = pytest.mark.parametrize(("predictor_cls", "train"), CASES)


@both
def test_every_form_of_batch_gives_what_the_library_gives(predictor_cls, train, tmp_path):
    expected = train(tmp_path)(X)
    predictor = predictor_cls.from_checkpoint(Checkpoint(tmp_path))

    assert np.array_equal(predictor.predict(X), expected)
    columns = {"c": X[:, 2], "a": X[:, 0], "b": X[:, 1]}
    assert np.array_equal(predictor.predict(columns)["predictions"], expected)
    frame = pd.DataFrame(columns, index=range(100, 500))
    predicted = predictor.predict(frame)
    assert np.array_equal(predicted["predictions"], expected)
    assert predicted.index.equals(frame.index)


@both
def test_feature_columns_choose_among_more(predictor_cls, train, tmp_path):
    expected = train(tmp_path)(X)
    predictor = predictor_cls.from_checkpoint(Checkpoint(tmp_path))
    columns = {"id": np.arange(400), "a": X[:, 0], "b": X[:, 1], "c": X[:, 2]}

    with pytest.raises(ConfigError, match="has 'id', which the model was not trained on"):
        predictor.predict(columns)
    predicted = predictor.predict(columns, feature_columns=NAMES)
    assert np.array_equal(predicted["predictions"], expected)
    predicted = predictor.predict(pd.DataFrame(columns), feature_columns=NAMES)
    assert np.array_equal(predicted["predictions"], expected)
    wide = np.concatenate([np.zeros((400, 1), "f4"), X], axis=1)
    assert np.array_equal(predictor.predict(wide, feature_columns=[1, 2, 3]), expected)


@both
def test_a_feature_that_is_missing_is_named(predictor_cls, train, tmp_path):
    train(tmp_path)
    predictor = predictor_cls.from_checkpoint(Checkpoint(tmp_path))
    with pytest.raises(ConfigError, match="has no 'b'"):
        predictor.predict({"a": X[:, 0], "c": X[:, 2]})


@both
def test_a_checkpoint_of_the_other_framework_is_refused(predictor_cls, train, tmp_path):
    train(tmp_path)
    (other,) = {XGBoostPredictor, LightGBMPredictor} - {predictor_cls}
    with pytest.raises(ConfigError, match=f"Use the predictor of {predictor_cls.framework}"):
        other.from_checkpoint(Checkpoint(tmp_path))


def test_arguments_of_xgboost_are_passed_on(tmp_path):
    expected = train_xgboost(tmp_path)
    predictor = XGBoostPredictor.from_checkpoint(Checkpoint(tmp_path))
    holes = np.where(X > 2, -1, X)

    margin = predictor.predict(X, predict_type="margin")
    assert np.allclose(1 / (1 + np.exp(-margin)), expected(X), atol=1e-6)
    assert predictor.predict(X, pred_leaf=True).shape == (400, 8)
    assert np.array_equal(
        predictor.predict(holes, dmatrix_kwargs={"missing": -1}),
        expected(np.where(holes == -1, np.nan, holes)),
    )


def test_arguments_of_lightgbm_are_passed_on(tmp_path):
    train_lightgbm(tmp_path)
    predictor = LightGBMPredictor.from_checkpoint(Checkpoint(tmp_path))
    assert predictor.predict(X, pred_contrib=True).shape == (400, 4)


def test_lightgbm_gets_integers_that_float32_would_round_unchanged(tmp_path):
    seconds = 1_700_000_000 + np.random.default_rng(0).integers(0, 600, 2000)
    label = seconds // 20 % 2
    params = {"objective": "binary", "verbose": -1, "min_data_in_leaf": 1, "max_bin": 1000}
    data = lightgbm.Dataset(seconds[:, None].astype("f8"), label, feature_name=["time"])
    booster = lightgbm.train(params, data, 8)
    expected = booster.predict(seconds[:, None].astype("f8"))
    predictor = LightGBMPredictor(booster)

    for batch in ({"time": seconds}, {"time": seconds.astype(object)}):
        assert np.array_equal(predictor.predict(batch)["predictions"], expected)
    assert np.array_equal(predictor.predict(seconds[:, None]), expected)


def test_a_model_that_was_stopped_early_predicts_with_its_best_rounds(tmp_path):
    train_xgboost(tmp_path)
    booster = xgboost.Booster(model_file=tmp_path / "model.ubj")
    booster.set_attr(best_iteration="2")
    predicted = XGBoostPredictor(booster).predict(X)
    data = xgboost.DMatrix(X, feature_names=NAMES)
    assert np.array_equal(predicted, booster.predict(data, iteration_range=(0, 3)))


def test_several_classes_are_a_column_each_in_a_frame(tmp_path):
    train_xgboost(tmp_path, objective="multi:softprob", num_class=2)
    predictor = XGBoostPredictor.from_checkpoint(Checkpoint(tmp_path))
    assert predictor.predict(X).shape == (400, 2)
    predicted = predictor.predict(pd.DataFrame(X, columns=NAMES))
    assert list(predicted.columns) == ["predictions_0", "predictions_1"]


def test_a_dart_model_is_predicted_with_all_its_trees(tmp_path):
    expected = train_xgboost(tmp_path, booster="dart", rate_drop=0.5)
    predictor = XGBoostPredictor.from_checkpoint(Checkpoint(tmp_path))
    assert np.allclose(predictor.predict(X), expected(X), rtol=1e-6)


def test_categories_of_a_frame_are_understood(tmp_path):
    frame = pd.DataFrame({"colour": pd.Categorical(list("rgb") * 100), "x": np.arange(300.0)})
    label = (frame["colour"] == "g").astype("f4")
    data = xgboost.DMatrix(frame, label, enable_categorical=True)
    booster = xgboost.train({"tree_method": "hist"}, data, 5)
    booster.save_model(tmp_path / "model.ubj")
    features = {"framework": "xgboost", "features": ["colour", "x"], "label": None}
    (tmp_path / "features.json").write_text(json.dumps(features))
    predicted = XGBoostPredictor.from_checkpoint(Checkpoint(tmp_path)).predict(frame)
    assert np.array_equal(predicted["predictions"], booster.predict(data))


@both
def test_categories_are_encoded_as_the_trainer_did(predictor_cls, train, tmp_path):
    colours = np.array(list("rgb?") * 75, dtype=object)
    codes = np.array([{"r": 0.0, "g": 1.0, "b": 2.0}.get(c, np.nan) for c in colours])
    matrix = np.stack([codes, np.arange(300.0)], axis=1)
    label = colours == "g"
    if predictor_cls is XGBoostPredictor:
        options = {"feature_types": ["c", "q"], "enable_categorical": True}
        data = xgboost.DMatrix(matrix, label, **options)
        booster = xgboost.train({}, data, 4)
        booster.save_model(tmp_path / "model.ubj")
        expected = booster.predict(data)
    else:
        data = lightgbm.Dataset(matrix, label, categorical_feature=[0])
        booster = lightgbm.train({"verbose": -1, "min_data_per_group": 1}, data, 4)
        booster.save_model(tmp_path / "model.txt")
        expected = booster.predict(matrix)
    content = {"framework": predictor_cls.framework, "features": ["colour", "x"], "label": "y"}
    content["categories"] = {"colour": ["r", "g", "b"]}
    (tmp_path / "features.json").write_text(json.dumps(content))

    predictor = predictor_cls.from_checkpoint(Checkpoint(tmp_path))
    columns = {"colour": colours, "x": np.arange(300.0)}
    assert np.allclose(predictor.predict(columns)["predictions"], expected)
    frame = pd.DataFrame({"colour": pd.Categorical(colours), "x": np.arange(300.0)})
    assert np.allclose(predictor.predict(frame)["predictions"], expected)
