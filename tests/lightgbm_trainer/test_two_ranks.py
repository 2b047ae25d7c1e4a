"""LightGBM on two ranks, over its own sockets and over MPI."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpctrain
from hpctrain import (
    CheckpointConfig,
    Result,
    RunConfig,
    ScalingConfig,
    WorkerError,
)
from hpctrain.gbdt import EarlyStopping
from hpctrain.lightgbm import (
    LightGBMCheckpoint,
    LightGBMConfig,
    LightGBMTrainer,
)
from tests.gbdt.boosting import restarts_once, with_random_labels

pytestmark = pytest.mark.mpi

PARAMS = {"objective": "binary", "num_leaves": 7, "min_data_in_leaf": 5, "verbosity": -1}


def model_of(result: Result) -> Any:
    assert result.checkpoint is not None
    return LightGBMTrainer.get_model(result.checkpoint)


def features_of(table: Any) -> Any:
    return table.drop(columns="target")


def test_mpi_and_sockets_grow_the_same_trees(whole: Result, fit: Any) -> None:
    over_mpi = fit(lightgbm_config=LightGBMConfig(network="mpi"))
    assert model_of(over_mpi).model_to_string() == model_of(whole).model_to_string()
    assert over_mpi.metrics_history == whole.metrics_history


def test_voting_parallel_trees_come_over_mpi_too(whole: Result, fit: Any) -> None:
    texts = [
        model_of(
            fit(
                params={**PARAMS, "tree_learner": "voting", "top_k": 3},
                lightgbm_config=LightGBMConfig(network=network),
                num_boost_round=5,
            )
        ).model_to_string()
        for network in ("mpi", "sockets")
    ]
    assert texts[0] == texts[1]
    assert "[tree_learner: voting]" in texts[0]


def test_two_ranks_are_as_good_as_one_process(whole: Result, frames: Any) -> None:
    import lightgbm
    from sklearn.metrics import roc_auc_score

    train, valid = frames["train"], frames["valid"]
    single = lightgbm.train(PARAMS, lightgbm.Dataset(features_of(train), train["target"]), 30)
    auc = roc_auc_score(valid["target"], single.predict(features_of(valid)))
    assert whole.metrics["valid-auc"] == pytest.approx(auc, abs=0.01)


def test_metrics_are_those_of_all_rows_and_not_of_one_rank(whole: Result, frames: Any) -> None:
    from sklearn.metrics import log_loss, roc_auc_score

    booster = model_of(whole)
    metrics = [name for name in whole.metrics if name.startswith("valid-")]
    assert metrics == ["valid-auc", "valid-binary_logloss"], "in the order of params"
    for name, frame in frames.items():
        predicted = booster.predict(features_of(frame))
        loss = log_loss(frame["target"], predicted)
        assert whole.metrics[f"{name}-binary_logloss"] == pytest.approx(loss, abs=1e-9)
        auc = roc_auc_score(frame["target"], predicted)
        assert whole.metrics[f"{name}-auc"] == pytest.approx(auc, abs=1e-5)


def test_a_run_that_resumes_adds_the_rounds_that_are_missing(
    whole: Result, fit: Any, frames: Any
) -> None:
    (ten,) = [c for c, metrics in whole.best_checkpoints if metrics["training_iteration"] == 10]
    resumed = fit(resume_from_checkpoint=ten)
    rounds = [metrics["training_iteration"] for metrics in resumed.metrics_history]
    assert rounds == list(range(11, 31))
    assert model_of(resumed).current_iteration() == 30
    trees = {
        name: model_of(r).dump_model()["tree_info"] for name, r in (("a", whole), ("b", resumed))
    }
    assert trees["a"][:10] == trees["b"][:10]
    loss = whole.metrics["valid-binary_logloss"]
    assert resumed.metrics["valid-binary_logloss"] == pytest.approx(loss, abs=0.05)


def _dies_in_round(round_number: int) -> Any:
    def die(env: Any) -> None:
        import os
        import signal

        world = hpctrain.get_context().world
        if env.iteration == round_number and world.attempt == 1 and world.world_rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    return die


@pytest.mark.parametrize("network", ["sockets", "mpi"])
def test_a_killed_rank_leads_to_a_restart_from_the_newest_checkpoint(
    fit: Any, tmp_path: Path, network: Any
) -> None:
    result = fit(
        train_kwargs={"callbacks": [_dies_in_round(17)]},
        num_boost_round=25,
        lightgbm_config=LightGBMConfig(network=network),
        run=restarts_once(tmp_path),
    )
    assert len(result.attempts) == 2
    rounds = [metrics["training_iteration"] for metrics in result.metrics_history]
    assert rounds[-15:] == list(range(11, 26)), "it went on after round 10"
    assert model_of(result).current_iteration() == 25


def test_all_ranks_stop_early_in_the_same_round_and_the_best_rounds_are_kept(
    fit: Any, frames: Any
) -> None:
    # Labels that mean nothing, and other ones on each rank: alone, ranks would stop apart.
    result = fit(
        datasets=with_random_labels(frames),
        num_boost_round=200,
        early_stopping=EarlyStopping(rounds=4),
    )
    losses = [metrics["valid-binary_logloss"] for metrics in result.metrics_history]
    best = int(np.argmin(losses)) + 1
    assert result.metrics["training_iteration"] == best + 4 < 200
    assert result.metrics["best_round"] == best
    assert model_of(result).current_iteration() == best


def test_a_training_function_of_the_user_sees_metrics_of_all_ranks_in_every_callback(
    frames: Any, tmp_path: Path
) -> None:
    def train() -> Any:
        import lightgbm

        import hpctrain
        from hpctrain.lightgbm import TrainReportCallback, get_network_params
        from hpctrain.worker.context import active_worker

        sets = {}
        for name in ("train", "valid"):
            shard = hpctrain.get_dataset_shard(name)
            # Labels that mean nothing, and other ones on each rank.
            seed = hpctrain.get_context().get_world_rank()
            label = __import__("numpy").random.default_rng(seed).integers(0, 2, len(shard))
            sets[name] = lightgbm.Dataset(shard.drop(columns="target"), label)
        sets["valid"].reference = sets["train"]
        seen: dict[str, Any] = {}
        first: list[float] = []
        booster = lightgbm.train(
            {
                "objective": "binary",
                "metric": "binary_logloss",
                "verbosity": -1,
                **get_network_params(),
            },
            sets["train"],
            num_boost_round=100,
            valid_sets=[sets["valid"]],
            valid_names=["valid"],
            callbacks=[
                lambda env: first.append(env.evaluation_result_list[0][2]),
                lightgbm.early_stopping(3, verbose=False),
                lightgbm.record_evaluation(seen),
                TrainReportCallback(frequency=2),
            ],
        )
        mine = (booster.best_iteration, seen["valid"]["binary_logloss"], first)
        return active_worker("test").comm.allgather(mine)

    result = LightGBMTrainer(
        train,
        datasets=frames,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=tmp_path, name="own", verbose=0, launcher="local"),
    ).fit()
    first, second = result.return_value
    assert first == second
    assert (
        first[1]
        == first[2]
        == [metrics["valid-binary_logloss"] for metrics in result.metrics_history]
    )
    assert len(first[1]) < 100


def test_weights_categories_and_groups_count_over_all_ranks(fit: Any) -> None:
    import pandas
    from sklearn.metrics import ndcg_score

    random = np.random.default_rng(0)
    # 9 groups of 21 rows: the middle of 189 rows is inside of one.
    query = np.repeat(np.arange(9), 21)
    table = pandas.DataFrame(random.integers(0, 9, (len(query), 3)), columns=list("abc"))
    table["kind"] = random.choice(["x", "y", "z"], len(query))
    table["relevance"] = (table["a"] + 4 * (table["kind"] == "z")) // 4
    train = table.assign(query=query, weight=1.0)
    result = fit(
        datasets={"train": train},
        label_column="relevance",
        group_column="query",
        weight_column="weight",
        categorical_columns=["kind"],
        params={
            "objective": "lambdarank",
            "metric": "ndcg",
            "eval_at": [5],
            "label_gain": list(range(4)),
            "min_data_in_leaf": 5,
        },
        num_boost_round=5,
    )
    assert result.checkpoint is not None
    features = LightGBMCheckpoint(result.checkpoint.path).get_features()
    assert features.categories == {"kind": ("x", "y", "z")}
    predicted = model_of(result).predict(features.matrix(train))
    by_hand = np.mean(
        [
            ndcg_score([table["relevance"][query == q]], [predicted[query == q]], k=5)
            for q in range(9)
        ]
    )
    assert result.metrics["train-ndcg@5"] == pytest.approx(by_hand, abs=0.02)


def test_a_label_that_is_nan_fails_before_training(fit: Any, frames: Any) -> None:
    train = frames["train"].copy()
    train.loc[train.index[-3:], "target"] = np.nan
    with pytest.raises(WorkerError, match=r"'train': 3 of 455 rows have a NaN or infinite label"):
        fit(datasets={**frames, "train": train})


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"params": {**PARAMS, "n_estimators": 9}}, "Use num_boost_round of the trainer"),
        ({"params": {**PARAMS, "early_stopping_round": 9}}, "Use early_stopping=EarlyStopping"),
        ({"train_kwargs": {"valid_sets": []}}, "the trainer sets valid_sets. Use datasets"),
        ({"ingest": "external"}, "'stream', which keeps nothing else"),
        ({"lightgbm_config": 1}, "; type LightGBMConfig is needed"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(
    fit: Any, changes: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(hpctrain.ConfigError, match=complaint):
        fit(**changes)


def test_one_rank_in_this_interpreter_is_one_process(fit: Any, frames: Any) -> None:
    import lightgbm

    train = frames["train"]
    result = fit(num_workers=0, params=PARAMS)
    single = lightgbm.train(
        {**PARAMS, "num_threads": 1}, lightgbm.Dataset(features_of(train), train["target"]), 30
    )
    valid = features_of(frames["valid"])
    assert abs(model_of(result).predict(valid) - single.predict(valid)).max() == 0.0


def test_rows_that_are_sorted_give_the_bins_of_one_process(
    whole: Result, fit: Any, frames: Any
) -> None:
    import lightgbm

    train = frames["train"].sort_values("mean_radius").reset_index(drop=True)
    # A tree of two leaves: its threshold is a border of bins.
    params = {**PARAMS, "num_leaves": 2}
    result = fit(datasets={"train": train}, params=params, num_boost_round=1)
    single = lightgbm.train(params, lightgbm.Dataset(features_of(train), train["target"]), 1)
    trees = [model.dump_model()["tree_info"] for model in (model_of(result), single)]
    thresholds = [tree[0]["tree_structure"]["threshold"] for tree in trees]
    assert thresholds[0] == thresholds[1]
    infos = [model.dump_model()["feature_infos"] for model in (model_of(result), single)]
    assert infos[0] == infos[1]


def test_rows_come_from_files_in_memory_and_as_a_stream_alike(
    whole: Result, fit: Any, frames: Any, tmp_path: Path
) -> None:
    from hpctrain.data import read_parquet

    for name, frame in frames.items():
        frame.to_parquet(tmp_path / f"{name}.parquet")
    datasets = {name: read_parquet(tmp_path / f"{name}.parquet") for name in frames}
    streamed = fit(
        datasets=datasets,
        ingest="stream",
        checkpoints=CheckpointConfig(checkpoint_frequency=10),
    )
    assert streamed.metrics_history == whole.metrics_history
    (ten,) = [c for c, metrics in whole.best_checkpoints if metrics["training_iteration"] == 10]
    resumed = [
        fit(resume_from_checkpoint=ten, **changes)
        for changes in ({}, {"datasets": datasets, "ingest": "stream"})
    ]
    assert resumed[0].metrics_history == resumed[1].metrics_history
