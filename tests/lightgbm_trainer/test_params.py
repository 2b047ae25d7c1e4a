"""Parameters that would let each rank grow a model of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpctrain
from hpctrain import ConfigError, RunConfig, ScalingConfig, WorkerError
from hpctrain.data import from_numpy
from hpctrain.lightgbm import LightGBMTrainer
from hpctrain.lightgbm.params import ALIASES, by_own_names


def test_aliases_are_those_of_lightgbm() -> None:
    from lightgbm.basic import _ConfigAliases

    assert {name: {name, *aliases} for name, aliases in ALIASES.items()} == {
        name: _ConfigAliases.get(name) for name in ALIASES
    }


def test_a_parameter_under_two_names_has_the_value_of_its_own_name() -> None:
    assert by_own_names({"metric": "l2", "metrics": "l1"}) == {"metric": "l2"}
    assert by_own_names({"metrics": "l1", "metric": "l2"}) == {"metric": "l2"}
    assert by_own_names({"tree": "voting", "eta": 1}) == {"tree_learner": "voting", "eta": 1}


def test_what_lightgbm_does_not_know_is_named_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    x = np.arange(40.0)
    LightGBMTrainer(
        datasets={"train": from_numpy({"x": x, "y": x})},
        label_column="y",
        params={"application": "l2", "lerning_rate": 0.1, "zzz": 1, "verbose": -1, "n_jobs": 1},
        num_boost_round=2,
        scaling_config=ScalingConfig(num_workers=0),
        run_config=RunConfig(storage_path=tmp_path, name="run", verbose=0),
    ).fit()
    printed = capfd.readouterr()
    warnings = [line for line in (printed.out + printed.err).splitlines() if "params has" in line]
    assert len(warnings) == 2
    assert "params has 'lerning_rate'" in warnings[0]
    assert "Did you mean 'learning_rate'?" in warnings[0]
    assert "params has 'zzz'" in warnings[1]


@pytest.mark.parametrize(
    ("params", "complaint"),
    [
        ({"linear_tree": True}, "so each rank would train on its own rows. Use one worker"),
        ({"linear_trees": "true"}, "LightGBM trains linear trees in one process only"),
        ({"tree_learner": "feature"}, "needs all rows on every rank"),
        ({"tree_type": "feature"}, "Use 'data' or 'voting'"),
    ],
)
def test_what_ranks_cannot_grow_together_is_refused_before_anything_starts(
    fit: Any, params: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        fit(params=params)
    # Some of them are no parameters of a Dataset at all.
    with pytest.raises(ConfigError, match=f"{complaint}|Give those of training in params"):
        fit(dataset_params=params)


def test_linear_trees_grow_in_one_process(fit: Any, frames: Any) -> None:
    import lightgbm

    params = {"objective": "binary", "linear_tree": True, "verbosity": -1, "num_threads": 1}
    features = frames["train"].drop(columns="target").astype(np.float32)
    single = lightgbm.train(params, lightgbm.Dataset(features, frames["train"]["target"]), 5)
    # LightGBM's linear trees keep float32 values.
    datasets = {"train": features.assign(target=frames["train"]["target"])}
    result = fit(num_workers=0, datasets=datasets, params=params, num_boost_round=5)
    model = LightGBMTrainer.get_model(result.checkpoint)
    assert (model.predict(features) == single.predict(features)).all()


@pytest.mark.mpi
@pytest.mark.parametrize("name", ["tree_learner", "tree_type"])
def test_a_dict_with_all_defaults_trains_on_the_rows_of_all_ranks(
    whole: Any, fit: Any, name: str
) -> None:
    # As LightGBM's documentation has them, for a dict that somebody copied.
    defaults = {"machines": "", "num_machines": 1, "pre_partition": False, name: "serial"}
    params = {"objective": "binary", "metric": ["auc", "binary_logloss"], "num_leaves": 7}
    result = fit(params={**defaults, **params, "min_data_in_leaf": 5})
    assert result.metrics_history == whole.metrics_history


@pytest.mark.mpi
@pytest.mark.parametrize("changes", [{"tree_learner": "serial"}, {"linear_tree": True}])
def test_a_training_function_whose_ranks_grow_unlike_models_fails_in_the_first_round(
    frames: Any, tmp_path: Path, changes: dict[str, Any]
) -> None:
    def train() -> None:
        import lightgbm

        from hpctrain.lightgbm import TrainReportCallback, get_network_params

        shard = hpctrain.get_dataset_shard("train")
        lightgbm.train(
            {"objective": "binary", "verbosity": -1, **get_network_params(), **changes},
            lightgbm.Dataset(shard.drop(columns="target"), shard["target"]),
            num_boost_round=3,
            callbacks=[TrainReportCallback()],
        )

    trainer = LightGBMTrainer(
        train,
        datasets=frames,
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=tmp_path, name="own", verbose=0, launcher="local"),
    )
    with pytest.raises(WorkerError, match="2 ranks have trained 2 different models"):
        trainer.fit()
