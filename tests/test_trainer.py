from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any, ClassVar

import pytest

from hpctrain.backend import BackendConfig
from hpctrain.checkpoint import Checkpoint
from hpctrain.config import CheckpointConfig, DataConfig, RunConfig, ScalingConfig
from hpctrain.errors import ConfigError
from hpctrain.train_function import takes_config
from hpctrain.trainer import BaseTrainer, DataParallelTrainer


def train() -> None:
    """Train."""


def train_with_config(config: dict[str, Any]) -> None:
    """Train."""


def train_with_three(config: Any, model: Any, data: Any) -> None:
    """Train."""


def train_with_data(config: Any, *, data: Any) -> None:
    """Train."""


@functools.wraps(train_with_data)
def train_with_given(config: Any) -> None:
    """Give the data."""
    train_with_data(config, data=1)


class Callable:
    """A training function with a state."""

    def __call__(self, config: Any) -> None:
        """Train."""


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (train, False),
        (train_with_config, True),
        (lambda: None, False),
        (lambda config=None: None, True),
        (lambda **options: None, False),
        (functools.partial(train_with_three, model=1, data=2), True),
        (functools.partial(train_with_data, data=2), True),
        (train_with_given, True),
        (functools.partial(train_with_given), True),
        (Callable(), True),
        (Callable().__call__, True),
    ],
)
def test_a_training_function_takes_its_configuration_or_nothing(function: Any, expected: bool):
    assert takes_config(function) is expected


def test_a_training_function_with_several_arguments_is_refused_by_name():
    message = (
        r"train_with_three\(config, model, data\) takes 3 arguments\. A training function takes "
        r"none, or one: the train_loop_config\. Put the rest into train_loop_config"
    )
    with pytest.raises(ConfigError, match=message):
        DataParallelTrainer(train_with_three)


def test_the_result_of_a_training_function_is_no_training_function():
    with pytest.raises(ConfigError, match=r"=None is not a function\. Pass the function itself"):
        DataParallelTrainer(None)  # type: ignore[arg-type]


def test_a_function_that_does_not_tell_its_arguments_is_no_training_function():
    with pytest.raises(ConfigError, match="has no signature"):
        DataParallelTrainer(max)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scaling_config": 4}, "scaling_config=4 is of type int; type ScalingConfig is needed"),
        ({"run_config": {}}, r"run_config=\{\} is of type dict; type RunConfig is needed"),
        (
            {"backend_config": "nccl"},
            "backend_config='nccl' is of type str; type BackendConfig is needed",
        ),
        ({"dataset_config": []}, r"dataset_config=\[\] is of type list; type DataConfig is needed"),
        (
            {"dataset_config": DataConfig(datasets_to_split=["trian"]), "datasets": {"train": []}},
            r"the trainer has no dataset 'trian'. It has \['train'\]",
        ),
        (
            {"resume_from_checkpoint": "/a"},
            "resume_from_checkpoint holds '/a' of type str. A Checkpoint is needed",
        ),
        (
            {"resume_from_checkpoint": Checkpoint("/no/where")},
            r"Checkpoint\('/no/where'\) does not exist\. Save into a directory first",
        ),
        ({"metadata": {"x": object()}}, r"metadata=.*: JSON values only: Object of type object"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused(arguments: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        DataParallelTrainer(train, **arguments)


def test_what_is_not_given_is_the_default():
    trainer = DataParallelTrainer(train)
    assert trainer.scaling_config == ScalingConfig()
    assert trainer.run_config == RunConfig()
    assert trainer.backend_config == BackendConfig()
    assert trainer.dataset_config == DataConfig()
    assert trainer.get_dataset_config() is trainer.dataset_config
    assert (trainer.datasets, trainer.metadata, trainer.train_loop_config) == ({}, {}, None)
    assert repr(trainer) == "DataParallelTrainer(num_workers=1)"


def test_a_trainer_may_leave_fields_of_the_scaling_config_unused():
    class OneNode(DataParallelTrainer):
        _scaling_config_allowed_keys: ClassVar[frozenset[str]] = frozenset(
            {"num_workers", "use_gpu"}
        )

    OneNode(train, scaling_config=ScalingConfig(num_workers=2))
    scaling = ScalingConfig(placement_strategy="SPREAD", resources_per_worker={"CPU": 2})
    message = (
        r"OneNode does not use ScalingConfig fields \['placement_strategy', "
        r"'resources_per_worker'\]\. It has \['num_workers', 'use_gpu'\]"
    )
    with pytest.raises(ConfigError, match=message):
        OneNode(train, scaling_config=scaling)


def test_a_trainer_has_to_say_how_it_trains():
    with pytest.raises(TypeError, match="abstract"):
        BaseTrainer()  # type: ignore[abstract]


def test_only_a_run_of_the_same_trainer_can_be_restored(tmp_path: Path):
    assert not DataParallelTrainer.can_restore(tmp_path)
    (tmp_path / "plan.json").write_text(json.dumps({"trainer": "hpctrain.trainer.Other"}))
    (tmp_path / "spec.pkl").write_bytes(b"")
    assert not DataParallelTrainer.can_restore(tmp_path)
    message = r"is not a run that hpctrain\.trainer\.DataParallelTrainer began\. 'hpctrain status"
    with pytest.raises(ConfigError, match=message):
        DataParallelTrainer.restore(tmp_path)
    plan = {"trainer": "hpctrain.trainer.DataParallelTrainer"}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    assert DataParallelTrainer.can_restore(tmp_path)


class Once(BaseTrainer):
    def training_loop(self) -> None:
        """Train."""


@pytest.mark.parametrize("begin", ["fit", "submit"])
def test_how_often_to_save_is_refused_where_the_training_function_saves(tmp_path: Path, begin: str):
    run_config = RunConfig(
        storage_path=tmp_path, checkpoint_config=CheckpointConfig(checkpoint_frequency=2)
    )
    # As in Ray Train, it is no error yet to make one.
    trainer = DataParallelTrainer(train, run_config=run_config)
    with pytest.raises(ConfigError, match="is for trainers that have the loop"):
        getattr(trainer, begin)()
    with pytest.raises(ConfigError, match="is for trainers that have the loop"):
        Once(run_config=run_config).fit()
    assert not list(tmp_path.iterdir())
