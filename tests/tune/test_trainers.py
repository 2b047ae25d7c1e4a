"""Each kind of trainer is a trial, with what the space chooses of its own parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import hpctrain
import hpctrain.data
from hpctrain import RunConfig, ScalingConfig, tune
from hpctrain.base_trainer import BaseTrainer
from hpctrain.metric_names import find_score


def table() -> pd.DataFrame:
    x = np.random.default_rng(0).normal(size=(300, 3))
    return pd.DataFrame(x, columns=list("abc")).assign(y=(x[:, 0] + x[:, 1] > 0).astype(int))


def make_xgboost() -> BaseTrainer:
    from hpctrain.xgboost import XGBoostTrainer

    return XGBoostTrainer(
        datasets={"train": hpctrain.data.from_pandas(table())},
        label_column="y",
        params={"objective": "binary:logistic", "eval_metric": "logloss"},
        num_boost_round=4,
        scaling_config=ScalingConfig(num_workers=1),
    )


def make_lightgbm() -> BaseTrainer:
    from hpctrain.lightgbm import LightGBMTrainer

    return LightGBMTrainer(
        datasets={"train": hpctrain.data.from_pandas(table())},
        label_column="y",
        params={"objective": "binary", "metric": "binary_logloss", "min_data_in_leaf": 5},
        num_boost_round=4,
        scaling_config=ScalingConfig(num_workers=1),
    )


def make_sklearn() -> BaseTrainer:
    from sklearn.tree import DecisionTreeClassifier

    from hpctrain.sklearn import SklearnTrainer

    return SklearnTrainer(
        estimator=DecisionTreeClassifier(random_state=0),
        datasets={"train": hpctrain.data.from_pandas(table())},
        label_column="y",
        cv=3,
    )


def _train_jax(config: Mapping[str, Any]) -> None:
    import jax.numpy as jnp

    hpctrain.report({"loss": float(jnp.square(config["x"]))})


def make_jax() -> BaseTrainer:
    from hpctrain.jax import JaxTrainer

    return JaxTrainer(_train_jax, scaling_config=ScalingConfig(num_workers=1))


def _train_horovod(config: Mapping[str, Any]) -> None:
    import horovod.torch as hvd
    import torch

    hvd.init()
    total = hvd.allreduce(torch.tensor(float(config["x"])), op=hvd.Sum)
    hpctrain.report({"loss": float(total)})


def make_horovod() -> BaseTrainer:
    from hpctrain.horovod import HorovodTrainer

    return HorovodTrainer(_train_horovod, scaling_config=ScalingConfig(num_workers=2))


DEPTHS = {"params": {"max_depth": tune.grid_search([1, 3])}}
XS = {"train_loop_config": {"x": tune.grid_search([3.0, 1.0])}}
CASES: dict[str, tuple[Callable[[], BaseTrainer], dict[str, Any], str, str, int]] = {
    "xgboost": (make_xgboost, DEPTHS, "train-logloss", "min", 1),
    "lightgbm": (make_lightgbm, DEPTHS, "train-binary_logloss", "min", 1),
    "sklearn": (
        make_sklearn,
        {"params": {"max_depth": tune.grid_search([1, 3])}},
        "cv/test_score_mean",
        "max",
        1,
    ),
    "jax": (make_jax, XS, "loss", "min", 1),
    "horovod": (make_horovod, XS, "loss", "min", 1),
}


@pytest.mark.parametrize("name", CASES)
def test_a_trainer_is_tuned(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    make, space, metric, mode, best = CASES[name]
    results = tune.Tuner(
        make(),
        param_space=space,
        tune_config=tune.TuneConfig(metric=metric, mode=mode),
        run_config=RunConfig(name=name, storage_path=str(tmp_path), verbose=1),
    ).fit()
    assert not results.errors
    scores = [find_score(result.metrics, metric) for result in results]
    values = [score for score in scores if score is not None]
    assert len(set(values)) == len(scores) == 2
    found = results.get_best_result()
    assert find_score(found.metrics, metric) == (min if mode == "min" else max)(values)
    assert found.path == results[best].path
    assert "changed" not in capfd.readouterr().err
