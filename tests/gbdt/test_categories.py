"""Categories that a preprocessor gives a dataset are those of the libraries with pandas alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from hpctrain import HpctrainError, RunConfig, ScalingConfig
from hpctrain.data import Dataset, read_parquet
from hpctrain.predict import BatchPredictor
from hpctrain.predict.features import ModelFeatures
from hpctrain.preprocessors import Categorizer

xgboost = pytest.importorskip("xgboost")
lightgbm = pytest.importorskip("lightgbm")

MEANS = {"d": 0.0, "a": 30.0, "c": 10.0, "b": 20.0}


def run(storage: Path, name: str) -> dict[str, Any]:
    return {
        "scaling_config": ScalingConfig(num_workers=0),
        "run_config": RunConfig(storage_path=storage, name=name, verbose=0),
    }


@pytest.fixture
def frame() -> pandas.DataFrame:
    random = np.random.default_rng(0)
    kind = random.permutation(np.array([*MEANS] * 60))
    frame = pandas.DataFrame({"kind": kind, "x": random.normal(size=len(kind))})
    frame["y"] = frame["kind"].map(MEANS) + frame["x"]
    frame["kind"] = frame["kind"].astype(object)
    frame.loc[::17, "kind"] = None
    return frame


@pytest.fixture
def dataset(frame: pandas.DataFrame, tmp_path: Path) -> Dataset:
    frame.to_parquet(tmp_path / "rows.parquet")
    dataset: Dataset = read_parquet(tmp_path / "rows.parquet")
    return dataset


def train_xgboost(
    dataset: Dataset, rows: pandas.DataFrame, label: Any, tmp_path: Path
) -> tuple[Any, Any, Any]:
    from hpctrain.xgboost import XGBoostPredictor, XGBoostTrainer

    params = {"eta": 0.3, "max_depth": 3, "min_child_weight": 0, "max_cat_to_onehot": 1}
    ours = XGBoostTrainer(
        datasets={"train": dataset},
        label_column="y",
        params=params,
        num_boost_round=10,
        preprocessor=Categorizer(["kind"]),
        **run(tmp_path, "xgboost"),
    ).fit()
    matrix = xgboost.QuantileDMatrix(rows, label, enable_categorical=True)
    theirs = xgboost.train(params, matrix, num_boost_round=10)
    return ours, XGBoostPredictor, theirs.predict(matrix)


def train_lightgbm(
    dataset: Dataset, rows: pandas.DataFrame, label: Any, tmp_path: Path
) -> tuple[Any, Any, Any]:
    from hpctrain.lightgbm import LightGBMPredictor, LightGBMTrainer

    params = {"learning_rate": 0.3, "min_data_per_group": 1, "cat_smooth": 0, "verbosity": -1}
    ours = LightGBMTrainer(
        datasets={"train": dataset},
        label_column="y",
        params={**params, "metric": "rmse"},
        num_boost_round=10,
        preprocessor=Categorizer(["kind"]),
        **run(tmp_path, "lightgbm"),
    ).fit()
    theirs = lightgbm.train(params, lightgbm.Dataset(rows, label), num_boost_round=10)
    return ours, LightGBMPredictor, theirs.predict(rows)


@pytest.mark.parametrize("train", [train_xgboost, train_lightgbm])
def test_a_categorizer_and_a_tree_library_agree_with_that_library_on_pandas_categories(
    train: Any, dataset: Dataset, frame: pandas.DataFrame, tmp_path: Path
) -> None:
    rows = frame.drop(columns="y").assign(kind=frame["kind"].astype("category"))
    ours, predictor_cls, expected = train(dataset, rows, frame["y"], tmp_path)
    features = ModelFeatures.read(ours.checkpoint.path)
    assert features is not None
    assert features.categories == {"kind": ("a", "b", "c", "d")}
    predictor = predictor_cls.from_checkpoint(ours.checkpoint)
    for batch in (frame, rows, {name: frame[name].to_numpy() for name in ("kind", "x")}):
        found = predictor.predict(batch)["predictions"]
        assert np.asarray(found) == pytest.approx(expected, rel=1e-6)
    scored = BatchPredictor.from_checkpoint(ours.checkpoint, predictor_cls).predict(
        dataset, output=tmp_path / "out.h5", **run(tmp_path, "scores")
    )
    assert scored.to_numpy()["predictions"] == pytest.approx(expected, rel=1e-6)


DAYS = pandas.Timestamp("2024-01-01") + pandas.to_timedelta([0, 1, 2] * 20, unit="D")


@pytest.mark.parametrize(
    ("values", "what"),
    [
        (pandas.cut(range(60), [-1, 20, 40, 60]), "Interval"),
        (pandas.Categorical(DAYS), "Timestamp"),
        (DAYS.astype("datetime64[us]"), "datetime64"),
        (DAYS.astype("datetime64[ns]"), "datetime64"),
    ],
)
def test_categories_that_a_checkpoint_cannot_store_are_refused_before_the_first_round(
    values: Any, what: str, tmp_path: Path
) -> None:
    from hpctrain.xgboost import XGBoostTrainer

    trainer = XGBoostTrainer(
        datasets={"train": pandas.DataFrame({"bin": values, "y": np.arange(60.0)})},
        label_column="y",
        params={"max_depth": 1},
        num_boost_round=1,
        categorical_columns=["bin"],
        **run(tmp_path, "xgboost"),
    )
    with pytest.raises(HpctrainError, match=rf"column 'bin'.* of type {what}.*astype\(str\)"):
        trainer.fit()
