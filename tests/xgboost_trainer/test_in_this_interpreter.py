"""What needs no ranks: which checkpoints there are, and what is refused before anything starts."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpctrain import CheckpointConfig, ConfigError, DataConfig, RunConfig, ScalingConfig
from hpctrain.gbdt import EarlyStopping
from hpctrain.xgboost import XGBoostCheckpoint, XGBoostTrainer


@pytest.mark.parametrize(
    ("frequency", "at_end", "expected"),
    [(4, None, 7), (4, False, 6), (5, True, 5), (0, None, 1), (0, False, 0)],
)
def test_checkpoints_of_25_rounds(
    fit: Any, frequency: int, at_end: bool | None, expected: int
) -> None:
    checkpoints = CheckpointConfig(checkpoint_frequency=frequency, checkpoint_at_end=at_end)
    result = fit(num_workers=0, num_boost_round=25, checkpoints=checkpoints)
    assert len(result.best_checkpoints) == expected
    assert len(result.metrics_history) == 25


def test_a_run_that_has_all_its_rounds_adds_none_and_fewer_are_refused(fit: Any) -> None:
    done = fit(num_workers=0, num_boost_round=5)
    again = fit(num_workers=0, num_boost_round=5, resume_from_checkpoint=done.checkpoint)
    assert again.metrics_history == [done.metrics]
    with pytest.raises(ConfigError, match=r"has 5 rounds already.*more than 5"):
        fit(num_workers=0, num_boost_round=4, resume_from_checkpoint=done.checkpoint)


@pytest.mark.parametrize("method", ["approx", "exact"])
def test_methods_that_need_values_grow_the_trees_of_xgboost_alone_and_resume(
    fit: Any, frames: Any, method: str
) -> None:
    import xgboost

    rows = frames["train"].drop(columns="target").astype(np.float32)
    label = frames["train"]["target"]
    params = {"objective": "binary:logistic", "tree_method": method, "max_depth": 3}
    alone = xgboost.train({**params, "max_bin": 16}, xgboost.DMatrix(rows, label), 6)
    given: dict[str, Any] = {"num_workers": 0, "params": params, "dataset_params": {"max_bin": 16}}
    whole = fit(**given, num_boost_round=6)
    assert XGBoostTrainer.get_model(whole.checkpoint).get_dump() == alone.get_dump()
    given["params"] = {**params, "subsample": 0.5}
    whole = fit(**given, num_boost_round=6)
    first = fit(**given, num_boost_round=3)
    resumed = fit(**given, num_boost_round=6, resume_from_checkpoint=first.checkpoint)
    dumps = [XGBoostTrainer.get_model(r.checkpoint).get_dump() for r in (whole, resumed)]
    assert dumps[0] == dumps[1] != alone.get_dump()


def test_a_run_that_is_finished_does_not_need_the_checkpoint_that_it_began_with(
    fit: Any, tmp_path: Path
) -> None:
    first = fit(num_workers=0, num_boost_round=5)
    arguments = {
        "num_workers": 0,
        "num_boost_round": 8,
        "run": RunConfig(storage_path=tmp_path, name="further", verbose=0),
        "resume_from_checkpoint": first.checkpoint,
    }
    assert len(fit(**arguments).metrics_history) == 3
    shutil.rmtree(first.path)
    assert len(fit(**arguments).metrics_history) == 3


def test_a_run_that_was_stopped_early_is_finished(fit: Any, frames: Any) -> None:
    noise = np.random.default_rng(3)
    train, valid = (
        frame.assign(target=noise.integers(0, 2, len(frame))) for frame in frames.values()
    )
    arguments = {
        "num_workers": 0,
        "datasets": {"train": train, "valid": valid},
        "num_boost_round": 90,
        "early_stopping": EarlyStopping(rounds=3, metric="valid-logloss"),
    }
    stopped = fit(**arguments)
    again = fit(**arguments, resume_from_checkpoint=stopped.checkpoint)
    assert again.metrics_history == [stopped.metrics]
    further = fit(
        **{
            **arguments,
            "early_stopping": None,
            "num_boost_round": stopped.metrics["best_round"] + 2,
        },
        resume_from_checkpoint=stopped.checkpoint,
    )
    assert len(further.metrics_history) == 2, "without early stopping it is a model to go on with"


def test_patience_outlives_a_restart(fit: Any, frames: Any) -> None:
    noise = np.random.default_rng(3)
    datasets = {
        name: frame.assign(target=noise.integers(0, 2, len(frame)))
        for name, frame in frames.items()
    }
    arguments = {
        "num_workers": 0,
        "datasets": datasets,
        "num_boost_round": 90,
        "early_stopping": EarlyStopping(rounds=6, metric="valid-logloss"),
        "checkpoints": CheckpointConfig(checkpoint_frequency=1),
    }
    whole = fit(**arguments)
    best = whole.metrics["best_round"]
    (before,) = [
        checkpoint
        for checkpoint, metrics in whole.best_checkpoints
        if metrics["training_iteration"] == best + 3
    ]
    resumed = fit(**arguments, resume_from_checkpoint=before)
    assert resumed.metrics == whole.metrics


def test_arrays_and_wide_columns_are_features_with_numbers(fit: Any) -> None:
    from hpctrain.data import from_numpy

    random = np.random.default_rng(0)
    rows = random.integers(0, 9, (60, 3)).astype(np.float32)
    label = (rows[:, 0] > 4).astype(np.int8)
    train = from_numpy({"x": rows, "y": label})
    result = fit(num_workers=0, datasets={"train": train}, label_column="y", num_boost_round=3)
    assert result.checkpoint is not None
    features = XGBoostCheckpoint(result.checkpoint.path).get_features()
    assert features.names == ("x_0", "x_1", "x_2")
    assert (features.matrix({"x": rows}) == rows).all()


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (
            {"label_column": "colour"},
            "dataset 'train' has no column 'colour', which label_column names. It has ",
        ),
        ({"label_column": None}, "needs label_column and params"),
        ({"weight_column": "w"}, "no column 'w'"),
        ({"categorical_columns": "target"}, "is a text, not a list of column names"),
        ({"categorical_columns": ["target"]}, "which is not a feature"),
        ({"num_boost_round": 0}, r"num_boost_round is 0\. It must be 1 or more"),
        ({"datasets": {}}, "datasets has nothing, but no 'train'"),
        ({"params": {"tree_method": "Hist"}}, "supports only tree_method of .'hist', 'auto'"),
        (
            {"params": {"tree_method": "exact"}, "scaling_config": ScalingConfig(num_workers=2)},
            "on 2 workers: XGBoost supports this method in one process only",
        ),
        (
            {"params": {"tree_method": "approx"}, "ingest": "stream"},
            "needs the values of all features, but only their bins are kept",
        ),
        (
            {"params": {"updater": "grow_colmaker"}},
            r"does not support \['grow_colmaker'\] with it. Use some",
        ),
        (
            {"params": {"updater": "grow_quantile_histmaker, refresh"}},
            r"does not support \['refresh'\]",
        ),
        ({"params": {"booster": "gblinear"}}, "supports only booster of .'gbtree', 'dart'"),
        ({"datasets": {"train": [], "held-out": []}}, "Call it 'held_out'"),
        (
            {"train_loop_per_worker": print},
            r"does not take \['label_column', 'num_boost_round', 'params'\]",
        ),
        ({"train_loop_config": {}}, "train_loop_config is given without a train_loop_per_worker"),
        ({"train_kwargs": {"evals": []}}, "the trainer sets evals. Use datasets"),
        ({"ingest": "stream", "group_column": "target"}, "groups are assembled in memory"),
        ({"dataset_config": DataConfig(datasets_to_split=[])}, "does not split 'train'"),
        ({"scaling_config": ScalingConfig(num_workers=600)}, "has 455 rows for 600 workers"),
        ({"xgboost_config": 1}, "; type XGBoostConfig is needed"),
        ({"run_config": {}}, "of type dict; type RunConfig is needed"),
        ({"early_stopping": 5}, "EarlyStopping is needed"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(
    fit: Any, changes: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        fit(**{"num_workers": 0, **changes})


def test_text_is_no_feature_unless_it_is_said_to_be_categories(fit: Any, frames: Any) -> None:
    train = frames["train"].assign(colour="red")
    with pytest.raises(
        ConfigError, match=r"column 'colour' holds .*Name it in categorical_columns"
    ):
        fit(num_workers=0, datasets={"train": train})


@pytest.mark.parametrize("name", ["init_score", "no_such"])
def test_arguments_that_a_matrix_does_not_have_are_refused(fit: Any, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"\['{name}'\], but xgboost.QuantileDMatrix has no"):
        fit(dataset_params={name: 1, "max_bin": 16})


def test_a_metric_that_there_is_not_is_refused_in_the_first_round(fit: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"'valid-mae'\): no round has that metric. The metrics are train-error"
    ):
        fit(num_workers=0, early_stopping=EarlyStopping(rounds=2, metric="valid-mae"))


def test_a_run_is_restored_from_its_directory(fit: Any) -> None:
    result = fit(num_workers=0, num_boost_round=3)
    trainer = XGBoostTrainer.restore(result.path)
    assert trainer.fit().metrics == result.metrics


def test_a_model_of_the_users_own_becomes_a_checkpoint(frames: Any) -> None:
    import xgboost

    from hpctrain.preprocessors import LabelEncoder

    table = frames["valid"]
    matrix = xgboost.DMatrix(table.drop(columns="target"), label=table["target"])
    booster = xgboost.train({"max_depth": 2}, matrix, 2)
    encoder = LabelEncoder("target").fit(table)
    checkpoint = XGBoostCheckpoint.from_model(booster, preprocessor=encoder)
    assert checkpoint.get_model().get_dump() == booster.get_dump()
    assert checkpoint.get_features().names == tuple(table.columns.drop("target"))
    assert isinstance(checkpoint.get_preprocessor(), LabelEncoder)


def test_importing_the_trainers_loads_neither_a_library_nor_numpy() -> None:
    code = """
import sys
from hpctrain.xgboost import XGBoostConfig, XGBoostTrainer
from hpctrain.lightgbm import LightGBMConfig, LightGBMTrainer
print([name for name in ("numpy", "pandas", "xgboost", "lightgbm") if name in sys.modules])
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "[]\n"


def test_how_often_to_save_is_refused_where_the_training_function_saves(fit: Any) -> None:
    checkpoints = CheckpointConfig(checkpoint_frequency=2)
    own = {"label_column": None, "params": None, "num_boost_round": None}
    with pytest.raises(ConfigError, match="is for trainers that have the loop"):
        fit(num_workers=0, checkpoints=checkpoints, train_loop_per_worker=print, **own)


@pytest.mark.parametrize(
    "params",
    [
        {"subsample": 0.5},
        {"colsample_bytree": 0.5},
        {"colsample_bylevel": 0.5},
        {"colsample_bynode": 0.5, "num_parallel_tree": 2},
        {"booster": "dart", "rate_drop": 0.3, "subsample": 0.7},
    ],
)
def test_a_run_that_samples_and_resumes_has_the_very_model(
    fit: Any, params: dict[str, Any]
) -> None:
    arguments = {
        "num_workers": 0,
        "num_boost_round": 12,
        "params": {"objective": "binary:logistic", "seed": 5, **params},
        "checkpoints": CheckpointConfig(checkpoint_frequency=5),
    }
    whole = fit(**arguments)
    for checkpoint, _ in whole.best_checkpoints[:2]:
        resumed = fit(**arguments, resume_from_checkpoint=checkpoint)
        dumps = [XGBoostTrainer.get_model(r.checkpoint).get_dump() for r in (whole, resumed)]
        assert dumps[0] == dumps[1]
    other = fit(**{**arguments, "params": {**arguments["params"], "seed": 6}})
    assert XGBoostTrainer.get_model(other.checkpoint).get_dump() != dumps[0]
