from __future__ import annotations

import pickle
import textwrap
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import skops.io
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

from hpctrain import Checkpoint, CheckpointError, ConfigError
from hpctrain.predict.features import ModelFeatures
from hpctrain.sklearn import SklearnPredictor

X, Y = load_iris(return_X_y=True)
NAMES = ["a", "b", "c", "d"]


def save(estimator, directory) -> Checkpoint:
    skops.io.dump(estimator, directory / "model.skops")
    ModelFeatures(framework="sklearn", features=tuple(NAMES), label="y").write(directory)
    return Checkpoint(directory)


def test_an_estimator_comes_back_without_pickle(tmp_path):
    estimator = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, Y)
    predictor = SklearnPredictor.from_checkpoint(save(estimator, tmp_path))
    assert np.array_equal(predictor.predict(X), estimator.predict(X))
    probabilities = predictor.predict(pd.DataFrame(X, columns=NAMES), method="predict_proba")
    assert np.allclose(probabilities.to_numpy(), estimator.predict_proba(X))


def test_an_estimator_that_knows_names_is_given_them(tmp_path):
    estimator = LogisticRegression(max_iter=1000).fit(pd.DataFrame(X, columns=NAMES), Y)
    predictor = SklearnPredictor.from_checkpoint(save(estimator, tmp_path))
    columns = {name: X[:, i] for i, name in reversed(list(enumerate(NAMES)))}
    # A warning of unlike names would be an error here.
    expected = estimator.predict(pd.DataFrame(X, columns=NAMES))
    assert np.array_equal(predictor.predict(columns)["predictions"], expected)
    assert np.array_equal(predictor.predict(pd.DataFrame(columns))["predictions"], expected)
    with pytest.raises(ConfigError, match="has no 'd'"):
        predictor.predict({name: columns[name] for name in "abc"})


def test_types_that_are_not_trusted_are_named_and_not_made(tmp_path):
    checkpoint = save(FunctionTransformer(textwrap.dedent), tmp_path)
    # Nobody else can have written it.
    SklearnPredictor.from_checkpoint(checkpoint)
    Path(checkpoint.path).chmod(0o775)
    why = r"can be written by others \(mode 0775\).*trusted=\['textwrap.dedent'\]"
    with pytest.raises(CheckpointError, match=why):
        SklearnPredictor.from_checkpoint(checkpoint)
    SklearnPredictor.from_checkpoint(checkpoint, trusted=["textwrap.dedent"])
    SklearnPredictor.from_checkpoint(checkpoint, trusted=True)


def test_an_estimator_that_ray_pickled_is_opened_where_it_may_be(tmp_path):
    estimator = LinearRegression().fit(X, Y)
    path = tmp_path / "model"
    path.write_bytes(pickle.dumps(estimator))
    checkpoint = Checkpoint(tmp_path)
    predictor = SklearnPredictor.from_checkpoint(checkpoint)
    assert np.array_equal(predictor.predict(X), estimator.predict(X))
    path.chmod(0o666)
    with pytest.raises(CheckpointError, match=r"model holds a pickled estimator; .*trusted=True"):
        SklearnPredictor.from_checkpoint(checkpoint)
    assert SklearnPredictor.from_checkpoint(checkpoint, trusted=True) is not None
    path.chmod(0o644)
    path.write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="is damaged, or of another scikit-learn"):
        SklearnPredictor.from_checkpoint(checkpoint)


def test_a_forest_needs_no_trust(tmp_path):
    estimator = RandomForestClassifier(2, random_state=0).fit(X, Y)
    predictor = SklearnPredictor.from_checkpoint(save(estimator, tmp_path))
    predicted = predictor.predict(X, num_estimator_cpus=1)
    assert np.array_equal(predicted, estimator.predict(X))


def test_texts_beside_numbers_are_scored_as_scikit_learn_does(tmp_path, each_example):
    rng = np.random.default_rng(0)
    rows = 60
    frame = pd.DataFrame(
        {
            "town": rng.choice(["Bonn", "Ulm", "Köln"], rows),
            "floor": rng.integers(-1, 9, rows),
            "id": 2**53 + rng.integers(0, 4, rows) * 2 + 1,
            "area": rng.normal(size=rows),
        }
    )
    encoders = [("o", OneHotEncoder(handle_unknown="ignore"), ["town", "floor", "id"])]
    columns = ColumnTransformer(encoders, remainder="passthrough")
    price = frame["floor"] + 3 * (frame["town"] == "Ulm") + frame["area"]
    estimator = make_pipeline(columns, LinearRegression()).fit(frame, price)
    skops.io.dump(estimator, tmp_path / "model.skops")
    names = tuple(frame.columns)
    ModelFeatures(framework="sklearn", features=names, label="y").write(tmp_path)
    predictor = SklearnPredictor.from_checkpoint(Checkpoint(tmp_path))

    def check(rng):
        some = frame.iloc[rng.integers(rows, size=rng.integers(1, 9))]
        expected = estimator.predict(some)
        objects = {name: some[name].to_numpy() for name in rng.permutation(names)}
        fixed = {**objects, "town": objects["town"].astype(str)}
        encoded = {**objects, "town": np.char.encode(fixed["town"], "utf-8")}
        data = (objects, fixed, encoded, some)[rng.integers(4)]
        assert np.array_equal(predictor.predict(data)["predictions"], expected)

    each_example(check)


def test_times_beside_numbers_are_refused_by_name(tmp_path):
    predictor = SklearnPredictor(LinearRegression().fit(X, Y))
    batch = {"when": np.array(["2024"], "M8[D]"), "area": np.array([1.0])}
    with pytest.raises(ConfigError, match="'when' datetime64"):
        predictor.predict(batch)
