"""Predictors of every library, in every form of a batch, with preprocessors and without rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pandas
import pytest
import sklearn.linear_model
import torch
import xgboost

from hpctrain import Checkpoint, ConfigError, RunConfig, ScalingConfig
from hpctrain.data import from_numpy
from hpctrain.data.arrow_batches import to_arrow
from hpctrain.data.pandas_batches import to_pandas
from hpctrain.lightgbm import LightGBMPredictor, LightGBMTrainer
from hpctrain.predict import BatchPredictor, Predictor
from hpctrain.predict.batches import name_outputs
from hpctrain.predict.features import ModelFeatures, describe_model
from hpctrain.preprocessors import Chain, Concatenator, StandardScaler
from hpctrain.sklearn import SklearnCheckpoint, SklearnPredictor, SklearnTrainer
from hpctrain.torch import TorchCheckpoint, TorchPredictor
from hpctrain.xgboost import XGBoostPredictor, XGBoostTrainer

FEATURES = ("f_0", "f_1", "f_2")
X = np.random.default_rng(0).normal(size=(60, 3))
Y = np.random.default_rng(1).integers(0, 3, size=60)
COLUMNS = {"a": X[:, 0], "b": X[:, 1], "c": X[:, 2]}
CHAIN = Chain(StandardScaler(["a", "b", "c"]), Concatenator(["a", "b", "c"], "f")).fit(COLUMNS)

Make = Callable[[Path], Predictor]


def xgboost_model(directory: Path) -> Predictor:
    data = xgboost.DMatrix(X, Y, feature_names=FEATURES)
    params = {"objective": "multi:softprob", "num_class": 3}
    xgboost.train(params, data, 2).save_model(directory / "model.ubj")
    return XGBoostPredictor.from_checkpoint(described(directory, "xgboost"))


def lightgbm_model(directory: Path) -> Predictor:
    data = lightgbm.Dataset(X, Y, feature_name=list(FEATURES))
    params = {"objective": "multiclass", "num_class": 3, "verbose": -1}
    lightgbm.train(params, data, 2).save_model(directory / "model.txt")
    return LightGBMPredictor.from_checkpoint(described(directory, "lightgbm"))


def sklearn_model(directory: Path) -> Predictor:
    estimator = sklearn.linear_model.LogisticRegression().fit(X, Y)
    SklearnCheckpoint.from_estimator(estimator, path=directory)
    return SklearnPredictor.from_checkpoint(described(directory, "sklearn"))


def sklearn_model_of_frames(directory: Path) -> Predictor:
    frame = pandas.DataFrame(X, columns=list(FEATURES))
    estimator = sklearn.linear_model.LogisticRegression().fit(frame, Y)
    SklearnCheckpoint.from_estimator(estimator, path=directory)
    return SklearnPredictor.from_checkpoint(described(directory, "sklearn"))


def torch_model(directory: Path) -> Predictor:
    model = torch.nn.Linear(3, 2).double()
    TorchCheckpoint.from_model(model, path=directory)
    return TorchPredictor.from_checkpoint(described(directory, "torch"), model=model)


def described(directory: Path, framework: str) -> Checkpoint:
    return describe_model(
        Checkpoint(directory),
        framework=framework,
        preprocessor=CHAIN,
        features=FEATURES,
        label="y",
    )


models = pytest.mark.parametrize(
    "make", [xgboost_model, lightgbm_model, sklearn_model, sklearn_model_of_frames, torch_model]
)
FORMS: dict[str, Callable[[Any], Any]] = {"numpy": dict, "pandas": to_pandas, "pyarrow": to_arrow}


def predictions(made: Any) -> np.ndarray[Any, Any]:
    columns = name_outputs(made)
    return np.stack(list(columns.values()), axis=1) if len(columns) > 1 else columns["predictions"]


@models
@pytest.mark.parametrize("label", [False, True])
def test_every_form_of_a_batch_gives_the_same(make: Make, label: bool, tmp_path: Path):
    predictor = make(tmp_path)
    preprocessor = predictor.get_preprocessor()
    batch = {**COLUMNS, "y": Y} if label else COLUMNS
    expected = predictions(predictor.predict(COLUMNS))
    assert len(expected) == 60
    for form in FORMS.values():
        assert np.array_equal(predictions(predictor.predict(form(batch))), expected)
    # And what the preprocessor makes, without it.
    predictor.set_preprocessor(None)
    made = preprocessor.transform_batch(batch)
    for form in FORMS.values():
        assert np.array_equal(predictions(predictor.predict(form(made))), expected)


@models
def test_a_batch_without_rows_has_as_many_predictions_of_their_type_and_shape(
    make: Make, tmp_path: Path
):
    predictor = make(tmp_path)
    some = predictor.predict(COLUMNS)["predictions"]
    frame = predictor.predict(to_pandas(COLUMNS))
    none = {name: values[:0] for name, values in COLUMNS.items()}
    made = predictor.predict(none)["predictions"]
    assert (made.dtype, made.shape) == (some.dtype, (0, *some.shape[1:]))
    assert predictor.predict(to_arrow(none)).schema == predictor.predict(to_arrow(COLUMNS)).schema
    for empty in (to_pandas(COLUMNS)[:0], pandas.DataFrame({"a": [], "b": [], "c": []})):
        made = predictor.predict(empty)
        assert made.dtypes.equals(frame.dtypes)
        assert len(made) == 0
    predictor.set_preprocessor(None)
    made = predictions(predictor.predict(X[:0]))
    assert (made.dtype, made.shape) == (some.dtype, (0, *some.shape[1:]))


def test_the_label_is_a_feature_where_the_model_was_trained_on_it(tmp_path: Path):
    data = xgboost.DMatrix(X, Y, feature_names=["a", "y", "c"])
    booster = xgboost.train({}, data, 2)
    booster.save_model(tmp_path / "model.ubj")
    ModelFeatures(framework="xgboost", features=("a", "y", "c"), label="y").write(tmp_path)
    predictor = XGBoostPredictor.from_checkpoint(Checkpoint(tmp_path))
    columns = {"a": X[:, 0], "y": X[:, 1], "c": X[:, 2]}
    assert np.array_equal(predictor.predict(columns)["predictions"], booster.predict(data))


def test_integers_reach_a_torch_model_that_takes_no_integers():
    model = torch.nn.Linear(2, 1)
    predictor = TorchPredictor(model)
    predictor.features = ("a", "b")
    columns = {"a": np.arange(3), "b": np.array([True, False, True])}
    rows = np.stack(list(columns.values()), axis=1)
    expected = model(torch.tensor(rows, dtype=torch.float32)).detach().numpy()
    for _ in range(2):
        assert np.array_equal(predictor.predict(columns)["predictions"], expected)
        assert np.array_equal(predictor.predict(rows)["predictions"], expected)
    with pytest.raises(RuntimeError, match="must have the same dtype"):
        predictor.predict(rows, dtype=torch.int64)


def test_integers_stay_integers_for_a_torch_model_that_takes_them():
    model = torch.nn.Sequential(torch.nn.Embedding(5, 2), torch.nn.Flatten(), torch.nn.Linear(4, 1))
    rows = np.array([[0, 4], [3, 1]])
    expected = model(torch.tensor(rows)).detach().numpy()
    assert np.array_equal(TorchPredictor(model).predict(rows)["predictions"], expected)
    with pytest.raises(IndexError):
        TorchPredictor(model).predict(rows + 9)


@pytest.mark.parametrize(
    ("trainer", "predictor", "options"),
    [
        (XGBoostTrainer, XGBoostPredictor, {"params": {}, "num_boost_round": 2}),
        (LightGBMTrainer, LightGBMPredictor, {"params": {"verbose": -1}, "num_boost_round": 2}),
        (
            SklearnTrainer,
            SklearnPredictor,
            {"estimator": sklearn.linear_model.LinearRegression()},
        ),
    ],
)
def test_a_model_of_a_frame_whose_preprocessor_makes_vectors_is_that_of_a_dataset(
    trainer, predictor, options, tmp_path: Path
):
    rows = {**COLUMNS, "y": X @ [1.0, 2.0, 3.0]}
    made = []
    for form, dataset in (("dataset", from_numpy(rows)), ("frame", to_pandas(rows))):
        result = trainer(
            label_column="y",
            datasets={"train": dataset},
            preprocessor=Chain(StandardScaler(["a", "b"]), Concatenator(["a", "b", "c"], "f")),
            scaling_config=ScalingConfig(num_workers=0),
            run_config=RunConfig(name=form, storage_path=str(tmp_path), verbose=0),
            **options,
        ).fit()
        loaded = predictor.from_checkpoint(result.checkpoint)
        assert loaded.features == FEATURES
        made += [loaded.predict(COLUMNS), loaded.predict(to_pandas(rows))]
    for other in made:
        assert np.array_equal(other["predictions"], made[0]["predictions"])


def rows_above(limit: float) -> Any:
    return from_numpy(COLUMNS).filter(lambda row: row["a"] > limit)


def test_steps_may_leave_out_the_first_rows_of_an_input(tmp_path: Path):
    xgboost_model(tmp_path)
    predictor = BatchPredictor.from_checkpoint(Checkpoint(tmp_path), XGBoostPredictor)
    options: Any = {
        "feature_columns": None,
        "keep_columns": (),
        "batch_size": 4,
        "output": None,
        "scaling_config": None,
        "run_config": None,
        "rows_per_part": None,
        "predict_kwargs": {},
    }
    largest = float(np.sort(X[:, 0])[-2])
    assert X[0, 0] < largest
    assert X[1, 0] < largest
    assert predictor._plan(rows_above(largest), **options).scoring.feature_columns == ("f",)
    with pytest.raises(ConfigError, match="steps of the input leave no rows"):
        predictor._plan(rows_above(np.inf), **options)
