"""What a tree trainer goes on with, with both libraries, in this interpreter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from hpctrain import CheckpointConfig, ConfigError, Result, RunConfig, ScalingConfig
from hpctrain.data import from_pandas
from hpctrain.gbdt import EarlyStopping
from hpctrain.predict.features import ModelFeatures

pytest.importorskip("xgboost")
pytest.importorskip("lightgbm")

Fit = Callable[..., Result]


@pytest.fixture(params=["xgboost", "lightgbm"])
def library(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def fit(library: str, tmp_path: Path) -> Fit:
    from hpctrain.lightgbm import LightGBMTrainer
    from hpctrain.xgboost import XGBoostTrainer

    trainer = {"xgboost": XGBoostTrainer, "lightgbm": LightGBMTrainer}[library]
    numbers = iter(range(100))

    def fit(*, frequency: int = 0, params: dict[str, Any] | None = None, **changes: Any) -> Result:
        run = RunConfig(
            storage_path=tmp_path,
            name=f"run{next(numbers)}",
            verbose=0,
            checkpoint_config=CheckpointConfig(checkpoint_frequency=frequency),
        )
        defaults = {
            "xgboost": {"eta": 0.3, "max_depth": 3, "min_child_weight": 0, "max_cat_to_onehot": 1},
            "lightgbm": {
                "learning_rate": 0.3,
                "min_data_in_leaf": 1,
                "min_data_per_group": 1,
                "cat_smooth": 0,
                "metric": "rmse",
            },
        }[library]
        own = {
            "label_column": "y",
            "scaling_config": ScalingConfig(num_workers=0),
            "run_config": run,
        }
        return trainer(**{**own, **changes, "params": {**defaults, **(params or {})}}).fit()  # type: ignore[arg-type]

    return fit


def scores(library: str, result: Result, frame: pandas.DataFrame) -> np.ndarray[Any, Any]:
    """Return what a predictor of the checkpoint says."""
    from hpctrain.lightgbm import LightGBMPredictor
    from hpctrain.xgboost import XGBoostPredictor

    assert result.checkpoint is not None
    predictor: Any = {"xgboost": XGBoostPredictor, "lightgbm": LightGBMPredictor}[library]
    predicted = predictor.from_checkpoint(result.checkpoint).predict(frame)
    return np.asarray(predicted["predictions"], dtype=float).ravel()


@pytest.mark.parametrize("values", [["d", "a", "c", "b"], [40, 10, 30, 20]])
def test_a_dataset_has_the_categories_of_its_frame(
    fit: Fit, library: str, values: list[Any]
) -> None:
    kind = np.random.default_rng(0).permutation(np.array(values * 60))
    means = dict(zip(values, [0.0, 30.0, 10.0, 20.0], strict=True))
    train = pandas.DataFrame({"kind": kind, "x": np.arange(len(kind)) % 7})
    train["y"] = train["kind"].map(means)
    train["kind"] = pandas.Categorical(train["kind"], categories=values)
    ours, theirs = (
        fit(datasets={"train": rows}, num_boost_round=10) for rows in (from_pandas(train), train)
    )
    assert ours.metrics_history == theirs.metrics_history
    assert ours.checkpoint is not None
    features = ModelFeatures.read(ours.checkpoint.path)
    assert features is not None
    assert features.categories == {"kind": tuple(sorted(values))}
    expected = scores(library, theirs, train)
    assert np.array_equal(scores(library, ours, train), expected)
    assert np.array_equal(scores(library, ours, train.assign(kind=[*kind])), expected)


def test_a_resume_with_other_categories_keeps_the_codes_of_the_first(
    fit: Fit, library: str
) -> None:
    means = {"a": 0.0, "b": 10.0, "c": 20.0, "d": 30.0}

    def table(values: str) -> pandas.DataFrame:
        kind = list(values) * 60
        return pandas.DataFrame(
            {"kind": kind, "x": np.arange(len(kind)) % 7, "y": [means[k] for k in kind]}
        )

    arguments: dict[str, Any] = {"categorical_columns": ["kind"]}
    first = fit(datasets={"train": table("abc")}, num_boost_round=30, **arguments)
    rows = pandas.DataFrame({"kind": list("abcd"), "x": 0})
    assert scores(library, first, rows)[:3] == pytest.approx([0, 10, 20], abs=0.1)
    second = fit(
        datasets={"train": table("bcd")},
        num_boost_round=60,
        resume_from_checkpoint=first.checkpoint,
        **arguments,
    )
    assert scores(library, second, rows) == pytest.approx([0, 10, 20, 30], abs=0.1)


def test_a_resume_with_the_columns_in_another_order_is_the_same(fit: Fit, library: str) -> None:
    random = np.random.default_rng(0)
    table = pandas.DataFrame(random.integers(0, 9, (200, 4)), columns=list("abcd"))
    table["y"] = 3 * table["a"] + table["b"] ** 2
    first = fit(datasets={"train": table}, num_boost_round=5)
    resumed = [
        fit(
            datasets={"train": table[list(columns)]},
            num_boost_round=15,
            resume_from_checkpoint=first.checkpoint,
        )
        for columns in ("abcdy", "dycba")
    ]
    assert resumed[0].metrics_history == resumed[1].metrics_history
    rows = table.drop(columns="y")
    assert (scores(library, resumed[0], rows) == scores(library, resumed[1], rows)).all()


def noise(rows: int = 120) -> dict[str, pandas.DataFrame]:
    """Return labels that mean nothing: the loss of held-out rows soon grows."""
    random = np.random.default_rng(1)
    tables = (
        pandas.DataFrame({"a": random.random(rows), "y": random.random(rows)}) for _ in range(2)
    )
    return dict(zip(("train", "valid"), tables, strict=True))


def stopper(library: str) -> Any:
    """Return a callback of the library's own that keeps the best rounds."""
    import lightgbm
    import xgboost

    if library == "xgboost":
        return xgboost.callback.EarlyStopping(rounds=3, save_best=True)
    return lightgbm.early_stopping(3, verbose=False)


def alone(library: str, tables: dict[str, pandas.DataFrame], rounds: int) -> Any:
    """Return what the library predicts by itself, stopped by that callback, and its best rounds."""
    import lightgbm
    import xgboost

    (x, y), (vx, vy) = [
        (table[["a"]].astype(np.float32), table["y"].astype(np.float32))
        for table in tables.values()
    ]
    if library == "xgboost":
        params: dict[str, Any] = {"eta": 0.3, "max_depth": 3, "min_child_weight": 0}
        matrix = xgboost.QuantileDMatrix(x, y)
        held_out = xgboost.QuantileDMatrix(vx, vy, ref=matrix)
        model = xgboost.train(
            params,
            matrix,
            rounds,
            evals=[(matrix, "train"), (held_out, "valid")],
            callbacks=[stopper(library)],
            verbose_eval=False,
        )
        return model.predict(held_out), model.num_boosted_rounds()
    params = {"learning_rate": 0.3, "min_data_in_leaf": 1, "metric": "rmse", "verbosity": -1}
    data = lightgbm.Dataset(x, y)
    booster = lightgbm.train(
        params,
        data,
        rounds,
        valid_sets=[lightgbm.Dataset(vx, vy, reference=data)],
        callbacks=[stopper(library)],
    )
    return booster.predict(vx), booster.best_iteration


@pytest.mark.parametrize("frequency", [0, 1])
@pytest.mark.parametrize("rounds", [100, 4])
def test_a_callback_of_the_library_that_stops_early_leaves_the_model_of_the_library(
    fit: Fit, library: str, frequency: int, rounds: int
) -> None:
    tables = noise()
    tables = {name: table.astype(np.float32) for name, table in tables.items()}
    result = fit(
        datasets=tables,
        num_boost_round=rounds,
        frequency=frequency,
        train_kwargs={"callbacks": [stopper(library)]},
    )
    predicted, best = alone(library, tables, rounds)
    assert result.metrics["best_round"] == best < result.metrics["training_iteration"] < 100
    valid = tables["valid"].drop(columns="y")
    assert scores(library, result, valid) == pytest.approx(predicted, abs=1e-6)


@pytest.mark.parametrize("frequency", [0, 1])
def test_a_stop_before_patience_ends_keeps_all_rounds(
    fit: Fit, library: str, frequency: int, tmp_path: Path
) -> None:
    tables = noise()
    run = RunConfig(
        storage_path=tmp_path,
        name="stopped",
        verbose=0,
        stop={"training_iteration": 20},
        checkpoint_config=CheckpointConfig(checkpoint_frequency=frequency),
    )
    stopped = fit(
        datasets=tables,
        num_boost_round=100,
        early_stopping=EarlyStopping(rounds=50, metric="valid-rmse"),
        run_config=run,
    )
    assert stopped.metrics["best_round"] < stopped.metrics["training_iteration"] == 20
    valid = tables["valid"].drop(columns="y")
    whole = fit(datasets=tables, num_boost_round=20)
    assert (scores(library, stopped, valid) == scores(library, whole, valid)).all()


@pytest.mark.parametrize("library", ["xgboost"], indirect=True)
def test_a_model_that_grows_after_an_early_stop_is_predicted_with_all_its_rounds(
    fit: Fit, library: str
) -> None:
    import xgboost

    tables = noise()
    callbacks = {"callbacks": [xgboost.callback.EarlyStopping(rounds=3)]}
    first = fit(datasets=tables, num_boost_round=50, train_kwargs=callbacks)
    grown = fit(datasets=tables, num_boost_round=60, resume_from_checkpoint=first.checkpoint)
    assert first.metrics["training_iteration"] < 50
    assert grown.metrics["training_iteration"] == 60
    predicted = scores(library, grown, tables["train"].drop(columns="y"))
    error = np.sqrt(np.mean((predicted - tables["train"]["y"]) ** 2))
    assert error == pytest.approx(grown.metrics["train-rmse"], abs=1e-6)


@pytest.mark.parametrize("library", ["xgboost"], indirect=True)
@pytest.mark.parametrize("ingest", ["memory", "stream"])
def test_a_value_that_stands_for_missing_ones_does_so_in_prediction(
    fit: Fit, library: str, ingest: str
) -> None:
    a = np.linspace(0, 1, 100, dtype=np.float32)
    label = np.where(np.arange(100) % 3, 1 - a, 5).astype(np.float32)
    table = pandas.DataFrame({"a": np.where(np.arange(100) % 3, a, -999), "y": label})
    result = fit(
        datasets={"train": table},
        num_boost_round=20,
        ingest=ingest,
        dataset_params={"missing": -999},
    )
    rows = table[["a"]]
    assert result.checkpoint is not None
    with_nan = rows.where(rows != -999)
    for batch in (rows, from_pandas(rows).to_numpy(), with_nan):
        predicted = scores(library, result, batch)
        error = np.sqrt(np.mean((predicted - label) ** 2))
        assert error == pytest.approx(result.metrics["train-rmse"], abs=1e-6)
    assert result.metrics["train-rmse"] < 0.1


def test_a_restored_run_takes_its_loop_from_the_configs_of_now(fit: Fit, library: str) -> None:
    from hpctrain.lightgbm import LightGBMTrainer
    from hpctrain.xgboost import XGBoostTrainer

    tables = noise()
    begun = fit(datasets=tables, num_boost_round=2, early_stopping=EarlyStopping(rounds=9))
    trainer: Any = {"xgboost": XGBoostTrainer, "lightgbm": LightGBMTrainer}[library]
    same = trainer.restore(begun.path)
    run = RunConfig(
        storage_path=begun.path.parent,
        name=begun.path.name,
        verbose=0,
        checkpoint_config=CheckpointConfig(checkpoint_frequency=2),
    )
    workers = ScalingConfig(num_workers=2, resources_per_worker={"CPU": 3, "GPU": 1}, use_gpu=True)
    changed = trainer.restore(
        begun.path, scaling_config=workers, run_config=run
    ).train_loop_per_worker
    assert changed == replace(
        same.train_loop_per_worker, threads=3, use_gpu=True, checkpoint_frequency=2
    )
    assert same.fit().metrics == begun.metrics
    more = trainer.restore(begun.path, num_boost_round=4).fit()
    assert more.metrics["training_iteration"] == 4


@pytest.mark.parametrize("library", ["xgboost"], indirect=True)
@pytest.mark.parametrize("at_end", [None, False])
@pytest.mark.parametrize("save_best", [False, True])
def test_the_round_in_which_a_callback_stops_xgboost_is_reported(
    fit: Fit, save_best: bool, at_end: bool | None, tmp_path: Path
) -> None:
    import xgboost

    run = RunConfig(
        storage_path=tmp_path,
        name="stopped",
        verbose=0,
        checkpoint_config=CheckpointConfig(checkpoint_at_end=at_end),
    )
    stop = xgboost.callback.EarlyStopping(rounds=3, save_best=save_best)
    arguments: dict[str, Any] = {"datasets": noise()}
    result = fit(
        **arguments, num_boost_round=100, train_kwargs={"callbacks": [stop]}, run_config=run
    )
    total = len(result.metrics_history)
    values = [
        [metrics["valid-rmse"] for metrics in found.metrics_history]
        for found in (result, fit(**arguments, num_boost_round=total))
    ]
    assert values[0] == values[1]
    assert np.argmin(values[0]) + 1 == total - 3
    assert result.metrics["training_iteration"] == total
    assert (result.checkpoint is None) == (at_end is False)


@pytest.mark.parametrize("early", [False, True])
def test_a_resume_with_nothing_left_to_do_has_the_model_and_its_metrics(
    fit: Fit, library: str, early: bool
) -> None:
    tables = noise()
    arguments: dict[str, Any] = {
        "datasets": tables,
        "num_boost_round": 60 if early else 5,
        "early_stopping": EarlyStopping(rounds=3) if early else None,
    }
    first = fit(**arguments)
    again = fit(**arguments, resume_from_checkpoint=first.checkpoint)
    assert again.metrics_history == [first.metrics]
    assert again.checkpoint is not None
    assert again.checkpoint.path.is_relative_to(again.path)
    valid = tables["valid"].drop(columns="y")
    assert (scores(library, again, valid) == scores(library, first, valid)).all()
    third = fit(**arguments, resume_from_checkpoint=again.checkpoint)
    assert third.metrics == first.metrics


ARGUMENTS = {
    "xgboost": "data label weight group ref qid base_margin label_lower_bound label_upper_bound "
    "feature_names feature_types enable_categorical data_split_mode",
    "lightgbm": "data label weight group reference init_score position feature_name params "
    "free_raw_data categorical_feature cat_column",
}


def test_arguments_of_a_dataset_that_could_have_no_effect_are_refused(
    fit: Fit, library: str
) -> None:
    for name in ARGUMENTS[library].split():
        with pytest.raises(ConfigError, match=rf"params=.'{name}'"):
            fit(datasets=noise(), dataset_params={name: [0.0] * 120})


def test_a_random_forest_is_grown_again_by_a_restart_and_not_resumed(tmp_path: Path) -> None:
    from hpctrain.lightgbm import LightGBMTrainer

    def forest(name: str, **changes: Any) -> LightGBMTrainer:
        return LightGBMTrainer(
            datasets=noise(),
            label_column="y",
            params={"boosting_type": "rf", "bagging_fraction": 0.5, "bagging_freq": 1},
            scaling_config=ScalingConfig(num_workers=0),
            run_config=RunConfig(
                storage_path=tmp_path,
                name=name,
                verbose=0,
                checkpoint_config=CheckpointConfig(checkpoint_frequency=1),
            ),
            num_boost_round=6,
            **changes,
        )

    def fail(env: Any) -> None:
        if env.iteration == 3:
            raise RuntimeError("the node is gone")

    expected = forest("whole").fit()
    with pytest.raises(RuntimeError, match="the node is gone"):
        forest("again", train_kwargs={"callbacks": [fail]}).fit()
    again = forest("again").fit()
    assert again.metrics == expected.metrics
    valid = noise()["valid"].drop(columns="y")
    assert np.array_equal(scores("lightgbm", again, valid), scores("lightgbm", expected, valid))
    with pytest.raises(ConfigError, match=r"cannot add trees to a random forest. Train all"):
        forest("third", resume_from_checkpoint=expected.checkpoint)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("max_bins_", "Did you mean 'max_bin'?"),
        ("min_data_in_bins", "Did you mean 'min_data_in_bin'?"),
        ("no_such", r"Use \['bin_construct_sample_cnt', .* Give those of training in params"),
        ("num_leaves", r"Give those of training in params"),
    ],
)
def test_a_parameter_that_no_dataset_of_lightgbm_has_is_refused(name: str, advice: str) -> None:
    from hpctrain.lightgbm import LightGBMTrainer

    arguments: Any = {"datasets": noise(), "label_column": "y", "params": {}}
    with pytest.raises(ConfigError, match=rf"'{name}': ...}} is not a parameter .*{advice}"):
        LightGBMTrainer(dataset_params={name: 5}, **arguments)
    for known in ("max_bin", "max_bins", "subsample_for_bin", "verbose"):
        LightGBMTrainer(dataset_params={known: 5}, **arguments)


def test_parameters_of_a_dataset_are_those_of_the_library(fit: Fit, library: str) -> None:
    import lightgbm
    import xgboost

    tables = {"train": noise()["train"].astype(np.float32)}
    features, label = tables["train"][["a"]], tables["train"]["y"]
    result = fit(datasets=tables, num_boost_round=3, dataset_params={"max_bin": 4})
    if library == "xgboost":
        params: dict[str, Any] = {"eta": 0.3, "max_depth": 3, "min_child_weight": 0, "max_bin": 4}
        matrix = xgboost.QuantileDMatrix(features, label, max_bin=4)
        expected = xgboost.train(params, matrix, 3).inplace_predict(features)
    else:
        params = {"learning_rate": 0.3, "min_data_in_leaf": 1, "verbosity": -1}
        data = lightgbm.Dataset(features, label, params={"max_bin": 4})
        expected = lightgbm.train(params, data, 3).predict(features)
    assert scores(library, result, features) == pytest.approx(expected, abs=1e-6)
    assert len(set(np.round(expected, 9))) <= 4
