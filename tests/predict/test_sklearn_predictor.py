from __future__ import annotations

import textwrap

import numpy as np
import pandas as pd
import pytest
import skops.io
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

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
    with pytest.raises(CheckpointError, match=r"trusted=\['textwrap.dedent'\]"):
        SklearnPredictor.from_checkpoint(checkpoint)
    SklearnPredictor.from_checkpoint(checkpoint, trusted=["textwrap.dedent"])


def test_a_forest_needs_no_trust(tmp_path):
    estimator = RandomForestClassifier(2, random_state=0).fit(X, Y)
    predictor = SklearnPredictor.from_checkpoint(save(estimator, tmp_path))
    predicted = predictor.predict(X, num_estimator_cpus=1)
    assert np.array_equal(predicted, estimator.predict(X))
