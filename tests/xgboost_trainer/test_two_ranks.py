"""XGBoost on two ranks grows the trees that one process grows, whatever happens meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpctrain
from hpctrain import (
    Checkpoint,
    Result,
    RunConfig,
    ScalingConfig,
    WorkerError,
)
from hpctrain.gbdt import EarlyStopping
from hpctrain.xgboost import XGBoostCheckpoint, XGBoostConfig, XGBoostTrainer
from tests.gbdt.boosting import restarts_once, with_random_labels

pytestmark = pytest.mark.mpi

PARAMS = {"objective": "binary:logistic", "eval_metric": ["logloss", "error"], "max_depth": 3}
PARAMS = {**PARAMS, "eta": 0.2}


def one_process(table: Any, params: dict[str, Any], rounds: int, **columns: Any) -> Any:
    import xgboost

    matrix = xgboost.QuantileDMatrix(table, enable_categorical=True, **columns)
    return xgboost.train(params, matrix, rounds)


def predictions(booster: Any, table: Any) -> Any:
    import xgboost

    matrix = xgboost.DMatrix(table.to_numpy(np.float32), feature_names=booster.feature_names)
    return booster.predict(matrix)


def features_of(table: Any) -> Any:
    return table.drop(columns="target").astype(np.float32)


def model_of(result: Result) -> Any:
    assert result.checkpoint is not None
    return XGBoostTrainer.get_model(result.checkpoint)


def test_two_ranks_predict_exactly_what_one_process_does(whole: Result, frames: Any) -> None:
    train, valid = frames["train"], features_of(frames["valid"])
    single = one_process(features_of(train), PARAMS, 30, label=train["target"])
    booster = model_of(whole)
    assert booster.num_boosted_rounds() == 30
    assert abs(predictions(booster, valid) - predictions(single, valid)).max() == 0.0


def test_two_ranks_approximate_as_well_as_one_process(fit: Any, frames: Any) -> None:
    import xgboost

    params = {**PARAMS, "tree_method": "approx"}
    result = fit(params=params, num_boost_round=10)
    train, valid = (
        xgboost.DMatrix(features_of(table), table["target"]) for table in frames.values()
    )
    found: dict[str, Any] = {}
    xgboost.train(
        params, train, 10, evals=[(valid, "valid")], evals_result=found, verbose_eval=False
    )
    expected = found["valid"]["logloss"][-1]
    assert result.metrics["valid-logloss"] == pytest.approx(expected, abs=0.02)
    assert float(model_of(result).eval(valid).split("logloss:")[1].split()[0]) == pytest.approx(
        result.metrics["valid-logloss"], abs=1e-5
    )


def test_each_round_is_reported_with_each_metric_of_each_dataset(
    whole: Result, frames: Any
) -> None:
    from sklearn.metrics import log_loss

    history = whole.metrics_history
    assert [metrics["training_iteration"] for metrics in history] == list(range(1, 31))
    names = {f"{dataset}-{metric}" for dataset in frames for metric in ("logloss", "error")}
    assert all(set(metrics) == {*names, "training_iteration"} for metrics in history)
    predicted = predictions(model_of(whole), features_of(frames["valid"]))
    loss = log_loss(frames["valid"]["target"], predicted)
    assert whole.metrics["valid-logloss"] == pytest.approx(loss, abs=1e-6)


def test_a_checkpoint_says_what_its_features_are(whole: Result, frames: Any) -> None:
    assert whole.checkpoint is not None
    checkpoint = XGBoostCheckpoint(whole.checkpoint.path)
    features = checkpoint.get_features()
    assert features.names == tuple(frames["valid"].columns.drop("target"))
    assert features.label == "target"
    assert {path.name for path in checkpoint.path.iterdir()} >= {"model.ubj", "features.json"}


def test_a_run_that_resumes_at_10_of_30_ends_like_one_that_was_not_interrupted(
    whole: Result, fit: Any, frames: Any
) -> None:
    (ten,) = [c for c, metrics in whole.best_checkpoints if metrics["training_iteration"] == 10]
    resumed = fit(resume_from_checkpoint=ten)
    assert len(resumed.metrics_history) == 20, "30 is the number of all rounds"
    assert resumed.metrics_history == whole.metrics_history[10:]
    valid = features_of(frames["valid"])
    difference = predictions(model_of(resumed), valid) - predictions(model_of(whole), valid)
    assert abs(difference).max() == 0.0


def _dies_in_round(round_number: int) -> Any:
    from xgboost.callback import TrainingCallback

    class Die(TrainingCallback):
        def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
            import os
            import signal

            world = hpctrain.get_context().world
            if epoch == round_number and world.attempt == 1 and world.world_rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            return False

    return Die()


def test_a_killed_rank_leads_to_a_restart_from_the_newest_checkpoint_with_the_same_end(
    whole: Result, fit: Any, frames: Any, tmp_path: Path
) -> None:
    result = fit(
        train_kwargs={"callbacks": [_dies_in_round(17)]},
        run=restarts_once(tmp_path),
    )
    assert len(result.attempts) == 2
    last_attempt = [m["training_iteration"] for m in result.metrics_history][-20:]
    assert last_attempt == list(range(11, 31)), "it went on after round 10"
    valid = features_of(frames["valid"])
    difference = predictions(model_of(result), valid) - predictions(model_of(whole), valid)
    assert abs(difference).max() == 0.0


def test_all_ranks_stop_early_in_the_same_round_and_the_best_rounds_are_kept(
    fit: Any, frames: Any
) -> None:
    # Labels that mean nothing: the loss of held-out rows soon grows.
    result = fit(
        datasets=with_random_labels(frames),
        num_boost_round=200,
        early_stopping=EarlyStopping(rounds=4, metric="valid-logloss"),
    )
    rounds = result.metrics["training_iteration"]
    losses = [metrics["valid-logloss"] for metrics in result.metrics_history]
    best = int(np.argmin(losses)) + 1
    assert rounds == best + 4 < 200
    assert result.metrics["best_round"] == best
    assert model_of(result).num_boosted_rounds() == best


def test_rows_come_from_files_in_memory_as_a_stream_and_from_external_memory_alike(
    whole: Result, fit: Any, frames: Any, tmp_path: Path
) -> None:
    from hpctrain.data import read_parquet

    for name, frame in frames.items():
        frame.to_parquet(tmp_path / f"{name}.parquet")
    datasets = {name: read_parquet(tmp_path / f"{name}.parquet") for name in frames}
    for ingest in ("stream", "external"):
        result = fit(datasets=datasets, ingest=ingest)
        assert result.metrics_history == whole.metrics_history


def test_weights_categories_and_missing_values_are_those_of_one_process(
    fit: Any, frames: Any
) -> None:
    import xgboost

    frames = {name: frame.copy() for name, frame in frames.items()}
    for frame in frames.values():
        size = frame["mean_radius"]
        frame["size"] = np.where(size > 16, "large", np.where(size > 12, "middle", "small"))
        frame["shade"] = frame["mean_texture"].astype(int) % 5
        frame.loc[::7, "mean_area"] = np.nan
        frame["weight"] = 1.0 + frame.index % 3
    result = fit(
        datasets=frames,
        weight_column="weight",
        categorical_columns=["size", "shade"],
        params={**PARAMS, "max_cat_to_onehot": 1},
    )
    booster = model_of(result)
    assert result.checkpoint is not None
    features = XGBoostCheckpoint(result.checkpoint.path).get_features()
    assert features.categories == {
        "size": ("large", "middle", "small"),
        "shade": (0, 1, 2, 3, 4),
    }
    train = frames["train"]
    kinds = ["c" if name in features.categories else "q" for name in features.names]
    single = one_process(
        features.matrix(train),
        {**PARAMS, "max_cat_to_onehot": 1},
        30,
        label=train["target"],
        weight=train["weight"],
        feature_types=kinds,
        feature_names=list(features.names),
    )
    matrix = xgboost.DMatrix(
        features.matrix(frames["valid"]),
        feature_types=kinds,
        feature_names=list(features.names),
        enable_categorical=True,
    )
    assert booster.get_dump() == single.get_dump()
    assert abs(booster.predict(matrix) - single.predict(matrix)).max() == 0.0


def test_groups_stay_whole_when_ranks_share_them_out(fit: Any) -> None:
    import pandas

    random = np.random.default_rng(0)
    # 9 groups of 21 rows: the middle of 189 rows is inside of one.
    query = np.repeat(np.arange(9), 21)
    table = pandas.DataFrame(random.integers(0, 9, (len(query), 5)), columns=list("abcde"))
    relevance = (table["a"] + random.integers(0, 3, len(query))) // 4
    train = table.assign(query=query, relevance=relevance)
    params = {"objective": "rank:pairwise", "eval_metric": "ndcg@5", "max_depth": 3}
    result = fit(
        datasets={"train": train},
        label_column="relevance",
        group_column="query",
        params=params,
        num_boost_round=10,
    )
    features = table.astype(np.float32)
    single = one_process(features, params, 10, label=relevance, qid=query)
    difference = predictions(model_of(result), features) - predictions(single, features)
    assert abs(difference).max() < 1e-5


def test_a_training_function_of_the_user_runs_inside_the_collective(
    frames: Any, tmp_path: Path
) -> None:
    def train() -> tuple[int, int]:
        import xgboost
        from xgboost import collective

        import hpctrain
        from hpctrain.xgboost import TrainReportCallback

        shard = hpctrain.get_dataset_shard("train")
        matrix = xgboost.QuantileDMatrix(shard.drop(columns="target"), label=shard["target"])
        xgboost.train(
            {"objective": "binary:logistic", "max_depth": 3, "eval_metric": "logloss"},
            matrix,
            num_boost_round=6,
            evals=[(matrix, "train")],
            callbacks=[TrainReportCallback(metrics={"loss": "train-logloss"}, frequency=4)],
            verbose_eval=False,
        )
        ranks = (collective.get_rank(), hpctrain.get_context().get_world_rank())
        assert ranks[0] == ranks[1]
        return collective.get_world_size(), len(shard)

    result = XGBoostTrainer(
        train,
        datasets=frames,
        xgboost_config=XGBoostConfig(timeout_s=60),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=tmp_path, name="own", verbose=0, launcher="local"),
    ).fit()
    assert result.return_value == (2, 228)
    assert [set(metrics) for metrics in result.metrics_history] == [
        {"loss", "training_iteration"}
    ] * 7, "the seventh has the checkpoint of the end"
    assert result.metrics_history[5] == result.metrics_history[6]
    assert len(result.best_checkpoints) == 2
    assert model_of(result).num_boosted_rounds() == 6


def test_a_label_that_is_nan_fails_before_training_and_says_on_which_rank(
    fit: Any, frames: Any
) -> None:
    train = frames["train"].copy()
    train.loc[train.index[-3:], "target"] = np.nan
    complaint = (
        r"'train': 3 of 455 rows have a NaN or infinite label \(column 'target'; ranks \[1\]"
    )
    with pytest.raises(WorkerError, match=complaint):
        fit(datasets={**frames, "train": train})


def test_what_a_preprocessor_makes_of_datasets_is_compared_on_the_ranks(
    fit: Any, frames: Any
) -> None:
    from hpctrain.preprocessors import BatchMapper

    def drop_in_valid(batch: Any) -> Any:
        return batch.drop(columns="mean_area") if batch["mean_area"].isna().all() else batch

    valid = frames["valid"].assign(mean_area=np.nan)
    with pytest.raises(WorkerError, match=r"has a column 'mean_area' that dataset 'valid'.* lacks"):
        fit(
            datasets={**frames, "valid": valid},
            preprocessor=BatchMapper(drop_in_valid, batch_format="pandas"),
        )


def test_a_checkpoint_of_other_features_is_not_gone_on_with(
    whole: Result, fit: Any, frames: Any
) -> None:
    fewer = {name: frame.drop(columns="mean_area") for name, frame in frames.items()}
    assert whole.checkpoint is not None
    with pytest.raises(WorkerError, match=r"30 features, the datasets have 29.*\['mean_area'\]"):
        fit(datasets=fewer, resume_from_checkpoint=whole.checkpoint, num_boost_round=40)


def test_the_checkpoint_of_something_else_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "features.json").write_text('{"framework": "lightgbm", "features": []}')
    with pytest.raises(hpctrain.CheckpointError, match="a checkpoint of lightgbm, not of xgboost"):
        XGBoostCheckpoint(tmp_path).get_model()
    with pytest.raises(hpctrain.CheckpointError, match=r"no features\.json"):
        XGBoostTrainer.get_model(Checkpoint.from_dict({"weights": 1}))


def test_a_preprocessor_is_fitted_on_the_ranks_and_carried_to_the_predictor(
    fit: Any, frames: Any
) -> None:
    from sklearn.metrics import log_loss

    from hpctrain.preprocessors import LabelEncoder
    from hpctrain.xgboost import XGBoostPredictor

    named = {
        name: frame.assign(target=np.where(frame["target"] == 1, "benign", "malign"))
        for name, frame in frames.items()
    }
    result = fit(datasets=named, preprocessor=LabelEncoder("target"), num_boost_round=5)
    assert result.checkpoint is not None
    predictor = XGBoostPredictor.from_checkpoint(result.checkpoint)
    valid = named["valid"]
    predicted = np.asarray(predictor.predict(valid.drop(columns="target"))).ravel()
    loss = log_loss(valid["target"] == "malign", predicted)
    assert result.metrics["valid-logloss"] == pytest.approx(loss, abs=1e-6)
