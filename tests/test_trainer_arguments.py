"""The arguments that trainers share: each constructor writes them out, and they stay the same.

An editor or a type checker shows what is written out, so nothing is collected in ``**kwargs``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpctrain import (
    BaseTrainer,
    Checkpoint,
    DataConfig,
    DataParallelTrainer,
    RunConfig,
    ScalingConfig,
    ValidationConfig,
)
from hpctrain.data import from_numpy
from hpctrain.gbdt import GBDTTrainer
from hpctrain.horovod import HorovodTrainer
from hpctrain.huggingface import AccelerateTrainer, TransformersTrainer
from hpctrain.jax import JaxTrainer
from hpctrain.lightgbm import LightGBMTrainer
from hpctrain.lightning import LightningTrainer
from hpctrain.preprocessors import StandardScaler
from hpctrain.sklearn import SklearnTrainer
from hpctrain.tensorflow import TensorflowTrainer
from hpctrain.torch import TorchTrainer
from hpctrain.xgboost import XGBoostTrainer

# What the name of a shared argument says otherwise in one of them.
OWN = {
    "GBDTTrainer.train_loop_per_worker",
    "XGBoostTrainer.train_loop_per_worker",
    "LightGBMTrainer.train_loop_per_worker",
    # There is none without.
    "SklearnTrainer.datasets",
}


def train() -> None:
    """Train."""


def init(train_dataset: Any, eval_dataset: Any) -> None:
    """Make a trainer."""


def lightning(**arguments: Any) -> LightningTrainer:
    pytest.importorskip("lightning")
    from lightning import LightningModule

    from hpctrain.lightning import LightningConfigBuilder

    config = LightningConfigBuilder().module(cls=LightningModule).build()
    return LightningTrainer(config, **arguments)


def sklearn(**arguments: Any) -> SklearnTrainer:
    tree = pytest.importorskip("sklearn.tree")
    return SklearnTrainer(estimator=tree.DecisionTreeClassifier(), **arguments)


MAKERS: dict[type[BaseTrainer], Callable[..., BaseTrainer]] = {
    DataParallelTrainer: lambda **rest: DataParallelTrainer(train, **rest),
    TorchTrainer: lambda **rest: TorchTrainer(train, **rest),
    JaxTrainer: lambda **rest: JaxTrainer(train, **rest),
    TensorflowTrainer: lambda **rest: TensorflowTrainer(train, **rest),
    HorovodTrainer: lambda **rest: HorovodTrainer(train, **rest),
    XGBoostTrainer: lambda **rest: XGBoostTrainer(train, **rest),
    LightGBMTrainer: lambda **rest: LightGBMTrainer(train, **rest),
    AccelerateTrainer: lambda **rest: AccelerateTrainer(train, **rest),
    TransformersTrainer: lambda **rest: TransformersTrainer(init, **rest),
    LightningTrainer: lightning,
    SklearnTrainer: sklearn,
}
each = pytest.mark.parametrize("kind", MAKERS, ids=lambda kind: kind.__name__)


def parameters(kind: type) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(kind).parameters)


@pytest.mark.parametrize("kind", [*MAKERS, GBDTTrainer], ids=lambda kind: kind.__name__)
def test_every_trainer_has_the_arguments_of_all_and_says_the_same_of_them(kind: type) -> None:
    own = parameters(kind)
    assert own.keys() >= parameters(BaseTrainer).keys()
    for base in (BaseTrainer, DataParallelTrainer, GBDTTrainer):
        if not issubclass(kind, base):
            continue
        for name, declared in parameters(base).items():
            if name in own and f"{kind.__name__}.{name}" not in OWN:
                assert own[name] == declared


@each
def test_every_argument_reaches_the_trainer(kind: type[BaseTrainer], tmp_path: Path) -> None:
    begun_with = Checkpoint.from_directory(tmp_path)
    given = {
        "scaling_config": ScalingConfig(num_workers=3),
        "run_config": RunConfig(name="mine", storage_path=tmp_path),
        "datasets": {"train": from_numpy({"x": np.arange(3.0)})},
        "metadata": {"a": 1},
        "preprocessor": StandardScaler(["x"]),
        "resume_from_checkpoint": begun_with,
        "dataset_config": DataConfig(datasets_to_split=[]),
        "validation_config": ValidationConfig(fn=lambda checkpoint: {"x": 1}),
        "train_loop_config": {"lr": 0.1},
    }
    given = {name: value for name, value in given.items() if name in parameters(kind)}
    trainer = MAKERS[kind](**given)
    assert {name: getattr(trainer, name) for name in given} == given
