"""Checkpoints of boosted trees are validated beside the training, with the real libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import hpctrain
from hpctrain import (
    Checkpoint,
    CheckpointConfig,
    ConfigError,
    Result,
    RunConfig,
    ScalingConfig,
    ValidationConfig,
    ValidationTaskConfig,
)
from tests.imports import forks_of_one_import

_forks = forks_of_one_import("lightgbm", "xgboost")

ROUNDS = 3
PARAMS = {
    "xgboost": {"objective": "binary:logistic"},
    "lightgbm": {"objective": "binary", "metric": "binary_logloss", "verbosity": -1},
}


def trainer_class(library: str) -> Any:
    pytest.importorskip(library)
    if library == "xgboost":
        from hpctrain.xgboost import XGBoostTrainer

        return XGBoostTrainer
    from hpctrain.lightgbm import LightGBMTrainer

    return LightGBMTrainer


def rows() -> Any:
    import pandas

    return pandas.DataFrame({"a": range(100), "target": [i % 2 for i in range(100)]})


def count_rounds(library: str, factor: int = 1) -> Any:
    def validate(checkpoint: Checkpoint, factor: int = factor) -> dict[str, Any]:
        model = trainer_class(library).get_model(checkpoint)
        count = model.num_boosted_rounds if library == "xgboost" else model.current_iteration
        return {"validated": factor * count()}

    return validate


def boost(library: str, validation: Any) -> None:
    shard = hpctrain.get_dataset_shard("train")
    features, label = shard.drop(columns="target"), shard["target"]
    if library == "xgboost":
        import xgboost

        from hpctrain.xgboost import RayTrainReportCallback

        xgboost.train(
            PARAMS[library],
            xgboost.DMatrix(features, label),
            ROUNDS,
            callbacks=[RayTrainReportCallback(frequency=2, validation=validation)],
        )
        return
    import lightgbm

    from hpctrain.lightgbm import RayTrainReportCallback as OfLightGBM
    from hpctrain.lightgbm import get_network_params

    lightgbm.train(
        {**PARAMS[library], **get_network_params()},
        lightgbm.Dataset(features, label),
        ROUNDS,
        callbacks=[OfLightGBM(frequency=2, validation=validation)],
    )


def fit(library: str, path: Path, *args: Any, workers: int = 0, **options: Any) -> Result:
    checkpoints = options.pop("checkpoints", CheckpointConfig())
    return trainer_class(library)(
        *args,
        datasets={"train": rows()},
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(
            storage_path=path,
            name="run",
            verbose=0,
            launcher="local" if workers else "auto",
            checkpoint_config=checkpoints,
        ),
        **{"validation_config": ValidationConfig(fn=count_rounds(library)), **options},
    ).fit()


def found(result: Result) -> list[Any]:
    return [metrics.get("validated") for _, metrics in result.best_checkpoints]


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.mpi)])
@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
def test_every_checkpoint_of_a_trainers_own_loop_is_validated(
    tmp_path: Path, library: str, workers: int
) -> None:
    result = fit(
        library,
        tmp_path,
        workers=workers,
        label_column="target",
        params=PARAMS[library],
        num_boost_round=ROUNDS,
        checkpoints=CheckpointConfig(
            checkpoint_frequency=1, num_to_keep=2, checkpoint_score_attribute="validated"
        ),
    )
    assert found(result) == [2, 3]
    assert [m["validated"] for m in result.metrics_history] == [1, 2, 3]


@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
def test_a_model_of_another_run_that_leaves_nothing_to_do_is_validated(
    tmp_path: Path, library: str
) -> None:
    own_loop = {"label_column": "target", "params": PARAMS[library], "num_boost_round": ROUNDS}
    first = fit(library, tmp_path / "first", validation_config=None, **own_loop)
    assert first.checkpoint is not None
    second = fit(library, tmp_path / "second", resume_from_checkpoint=first.checkpoint, **own_loop)
    assert found(second) == [ROUNDS]


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.mpi)])
@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
def test_the_callback_of_a_training_function_asks_for_it(
    tmp_path: Path, library: str, workers: int
) -> None:
    task = ValidationTaskConfig(fn_kwargs={"factor": 10})
    result = fit(library, tmp_path, lambda: boost(library, task), workers=workers)
    assert found(result) == [20, 30]


@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
def test_a_callback_that_does_not_ask_has_no_validation(tmp_path: Path, library: str) -> None:
    assert found(fit(library, tmp_path, lambda: boost(library, False))) == [None, None]


@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
def test_a_callback_that_asks_where_no_function_is_given_is_refused(
    tmp_path: Path, library: str
) -> None:
    with pytest.raises(ConfigError, match="the trainer has no function for it"):
        fit(library, tmp_path, lambda: boost(library, True), validation_config=None)
