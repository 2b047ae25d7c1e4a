"""Arguments of Ray Train: taken where they mean something here, else an error with the way out."""

from pathlib import Path

import numpy as np
import pytest
from lightning.pytorch import LightningModule
from sklearn.linear_model import LinearRegression

from hpctrain import (
    BaseTrainer,
    Checkpoint,
    ConfigError,
    DataConfig,
    DataParallelTrainer,
    FailureConfig,
    RunConfig,
    ScalingConfig,
)
from hpctrain.data import from_numpy
from hpctrain.lightgbm import LightGBMTrainer
from hpctrain.lightning import LightningConfigBuilder
from hpctrain.predict import BatchPredictor, Predictor
from hpctrain.predict.scoring_workers import take_scaling
from hpctrain.preprocessors import StandardScaler
from hpctrain.ray_names import INSTEAD_OF_FIELDS
from hpctrain.sklearn import SklearnTrainer
from hpctrain.torch import TorchConfig, TorchPredictor
from hpctrain.tune import TuneConfig
from hpctrain.xgboost import XGBoostTrainer


def test_a_field_that_is_not_there_says_what_to_use_instead():
    from hpctrain import SyncConfig, ValidationConfig

    configs = (DataConfig, FailureConfig, RunConfig, ScalingConfig, SyncConfig, ValidationConfig)
    kinds = {k.__name__: k for k in configs}
    kinds |= {"TorchConfig": TorchConfig, "TuneConfig": TuneConfig}
    for kind, instead in INSTEAD_OF_FIELDS.items():
        for name, way_out in instead.items():
            with pytest.raises(ConfigError) as refusal:
                kinds[kind](**{name: None})
            assert str(refusal.value) == f"{kind} has no field {name!r}: {way_out}"


def test_torch_meets_at_a_store_by_either_method():
    for method in ("env", "tcp"):
        assert TorchConfig(init_method=method, timeout_s=60).init_method == method
    with pytest.raises(ConfigError, match="init_method"):
        TorchConfig(init_method="file")


def test_a_missing_train_dataset_is_a_key_error_too():
    data = from_numpy({"x": np.arange(4.0), "y": np.arange(4.0)})
    with pytest.raises(KeyError) as refusal:
        XGBoostTrainer(datasets={"valid": data}, label_column="y", params={})
    assert isinstance(refusal.value, ConfigError)
    assert str(refusal.value).startswith("datasets has ['valid'], but no 'train'")
    with pytest.raises(KeyError):
        SklearnTrainer(estimator=LinearRegression(), datasets={"valid": data}, label_column="y")
    with pytest.raises(KeyError):
        DataParallelTrainer(lambda: None, preprocessor=StandardScaler(["x"]))


class Doubled(Predictor):
    @classmethod
    def from_checkpoint(cls, checkpoint, **kwargs):
        return cls(**kwargs)

    def _predict_pandas(self, data, **kwargs):
        return data * 2


def test_scoring_workers_are_ranks(tmp_path: Path):
    assert take_scaling({}, None, Doubled, {}) == (None, {})
    kwargs = {"min_scoring_workers": 2, "max_scoring_workers": 3, "num_cpus_per_worker": 2, "a": 1}
    scaling, _ = take_scaling(kwargs, None, Doubled, {})
    assert scaling == ScalingConfig(num_workers=3, resources_per_worker={"CPU": 2})
    assert kwargs == {"a": 1}
    with pytest.raises(ConfigError, match="Give only the ScalingConfig"):
        take_scaling({"min_scoring_workers": 2}, ScalingConfig(), Doubled, {})
    predictor = BatchPredictor.from_checkpoint(Checkpoint.from_dict({}), Doubled)
    with pytest.raises(ConfigError, match="num_workers"):
        predictor.predict(from_numpy({"x": np.arange(4.0)}), min_scoring_workers=-1)


def test_workers_with_gpus_load_predictors_that_use_them():
    given = {"a": 1}
    scaling, kwargs = take_scaling({"num_gpus_per_worker": 1}, None, TorchPredictor, given)
    assert scaling == ScalingConfig(use_gpu=True, resources_per_worker={"GPU": 1})
    assert kwargs == {"a": 1, "use_gpu": True}
    assert given == {"a": 1}
    _, kwargs = take_scaling({"num_gpus_per_worker": 1}, None, Doubled, {"use_gpu": True})
    assert kwargs == {"use_gpu": True}
    refused = "Doubled does not support GPU prediction: .* has no argument use_gpu"
    with pytest.raises(ConfigError, match=refused):
        take_scaling({"num_gpus_per_worker": 1}, None, Doubled, {})
    with pytest.raises(ConfigError, match="it was given use_gpu=False"):
        take_scaling({"num_gpus_per_worker": 1}, None, TorchPredictor, {"use_gpu": False})
    # Whatever else there is goes to the predictor.
    rest = {"separate_gpu_stage": False, "allow_gpu": True}
    take_scaling(rest, None, TorchPredictor, {})
    assert rest == {"allow_gpu": True}


def test_boosters_by_rays_names():
    import xgboost

    from hpctrain.lightgbm import RayTrainReportCallback as OfLightGBM
    from hpctrain.xgboost import RayTrainReportCallback, XGBoostCheckpoint

    assert RayTrainReportCallback.CHECKPOINT_NAME == "model.ubj"
    assert OfLightGBM.CHECKPOINT_NAME == "model.txt"
    matrix = xgboost.DMatrix(np.arange(4.0).reshape(4, 1), np.arange(4.0))
    booster = xgboost.train({"nthread": 1}, matrix, num_boost_round=2)
    checkpoint = XGBoostCheckpoint.from_model(booster=booster)
    assert checkpoint.get_model().num_boosted_rounds() == 2
    with pytest.raises(ConfigError, match="Give one model"):
        XGBoostCheckpoint.from_model()


def test_fail_fast_says_that_no_failure_is_survived():
    assert FailureConfig(fail_fast=False, max_failures=2).max_failures == 2
    for value in (True, "raise"):
        assert FailureConfig(fail_fast=value).fail_fast == value
        with pytest.raises(ValueError, match="cannot restart"):
            FailureConfig(fail_fast=value, max_failures=1)
    with pytest.raises(ValueError, match="fail_fast"):
        FailureConfig(fail_fast="sometimes")


def test_datasets_to_split_is_a_list():
    with pytest.raises(TypeError, match=r"Give \['train'\]") as refusal:
        DataConfig(datasets_to_split="train")
    assert isinstance(refusal.value, ConfigError)
    assert DataConfig(datasets_to_split=["train"]).datasets_to_split == ("train",)


@pytest.mark.parametrize("kind", [LightGBMTrainer, XGBoostTrainer])
def test_dmatrix_params_name_datasets(kind):
    data = from_numpy({"x": np.arange(4.0), "y": np.arange(4.0)})
    given = {"datasets": {"train": data, "valid": data}, "label_column": "y", "params": {}}
    kind(**given, dmatrix_params={"train": {}})
    with pytest.raises(KeyError, match="dmatrix_params has 'data', but datasets has"):
        kind(**given, dmatrix_params={"data": {}})
    with pytest.raises(ConfigError, match="dataset_params"):
        kind(**given, dmatrix_params={"train": {"max_bin": 4}})
    with pytest.raises(ConfigError, match="dmatrix_params"):
        kind(lambda: None, dmatrix_params={"train": {}})


def test_dmatrix_params_of_all_datasets_are_dataset_params():
    data = from_numpy({"x": np.arange(4.0), "y": np.arange(4.0)})
    given = {"datasets": {"train": data, "valid": data}, "label_column": "y", "params": {}}
    same = {"train": {"max_bin": 4}, "valid": {"max_bin": 4}}
    trainer = XGBoostTrainer(**given, dmatrix_params=same)
    assert trainer.train_loop_per_worker.dataset_params == {"max_bin": 4}
    with pytest.raises(ConfigError, match="Give one of them"):
        XGBoostTrainer(**given, dmatrix_params=same, dataset_params={})
    with pytest.raises(ConfigError, match="give the trainer weight_column="):
        XGBoostTrainer(**given, dmatrix_params={name: {"weight": "y"} for name in same})


def test_dmatrix_params_say_which_datasets_are_split():
    data = from_numpy({"x": np.arange(4.0), "y": np.arange(4.0)})
    given = {"datasets": {"train": data, "valid": data}, "label_column": "y", "params": {}}
    trainer = XGBoostTrainer(
        **given,
        dataset_params={"max_bin": 4},
        dataset_config=DataConfig(datasets_to_split=["train"]),
    )
    expected = {"train": {"max_bin": 4, "distributed": True}, "valid": {"max_bin": 4}}
    assert trainer.dmatrix_params == expected
    # It may be given to another trainer.
    again = XGBoostTrainer(**given, dmatrix_params=trainer.dmatrix_params)
    assert again.train_loop_per_worker.dataset_params == {"max_bin": 4}
    assert XGBoostTrainer(lambda: None).dmatrix_params == {}
    whole = {"train": {"distributed": False}}
    with pytest.raises(ConfigError, match=r"'distributed': False.*each rank reads its part"):
        XGBoostTrainer(**given, dmatrix_params=whole)


def test_the_last_checkpoint_of_lightning_is_kept_in_any_case():
    builder = LightningConfigBuilder
    for value in (None, False, True, "link"):
        made = builder().module(LightningModule).checkpointing(save_last=value).build()
        assert made == builder().module(LightningModule).checkpointing().build()


class Idle(BaseTrainer):
    def training_loop(self):
        pass


@pytest.mark.parametrize("kind", [Idle, DataParallelTrainer])
def test_datasets_are_datasets_by_name(kind):
    loop = (lambda: None,) if kind is DataParallelTrainer else ()
    for value in (False, "rows", [1]):
        with pytest.raises(ValueError, match=r"Give datasets by name: datasets=\{'train'"):
            kind(*loop, datasets=value)
    for value in ("rows.parquet", 3, None):
        with pytest.raises(ValueError, match=r"datasets=\{'train': .* has no rows"):
            kind(*loop, datasets={"train": value})
    kind(*loop, datasets={"train": np.ones(3), "valid": lambda: np.ones(3)})


def test_each_worker_may_be_given_any_object():
    whole = DataConfig(datasets_to_split=[])
    trainer = DataParallelTrainer(lambda: None, datasets={"a": "rows"}, dataset_config=whole)
    assert trainer.datasets == {"a": "rows"}
