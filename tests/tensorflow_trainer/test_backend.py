"""The backend fulfils the contract, and says what to do where TensorFlow cannot."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import tensorflow

from hpctrain import ConfigError, RunConfig, ScalingConfig
from hpctrain.tensorflow import TensorflowConfig, TensorflowTrainer
from hpctrain.tensorflow.backend import TensorflowBackend, _reserve_port
from hpctrain.tensorflow.device import show_gpus
from hpctrain.testing.backend_contract import BackendContract


@pytest.mark.mpi
class TestTensorflowBackend(BackendContract):
    backend_config = TensorflowConfig()

    @staticmethod
    def rank_and_size() -> tuple[int, int]:
        import tensorflow as tf

        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        return resolver.task_id, resolver.cluster_spec().num_tasks("worker")


def fit_here(storage: Path, train: Any = lambda: None, **changes: Any) -> Any:
    return TensorflowTrainer(
        train,
        scaling_config=ScalingConfig(num_workers=0),
        run_config=RunConfig(storage_path=storage, name="here"),
        **changes,
    ).fit()


@pytest.mark.parametrize("package", ["tensorflow", "tf_keras"])
def test_a_missing_package_is_named_with_what_installs_it(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    install = {"tensorflow": r"'hpctrain\[tensorflow\]'", "tf_keras": "tf_keras==2"}[package]
    with pytest.raises(ConfigError, match=rf"cannot import {package}.*pip install {install}"):
        fit_here(tmp_path)


def test_another_keras_than_the_one_in_use_is_refused(tmp_path: Path) -> None:
    assert fit_here(tmp_path, lambda: tensorflow.keras.Model.__module__).return_value == (
        "tf_keras.src.engine.training"
    )
    with pytest.raises(ConfigError, match=r"is Keras 2 in this process.*TF_USE_LEGACY_KERAS=0"):
        fit_here(tmp_path / "3", tensorflow_config=TensorflowConfig(legacy_keras=False))


@pytest.mark.parametrize("config", [{"legacy_keras": 3}, {"legacy_keras": None}])
def test_a_configuration_that_is_none_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="A bool is needed"):
        TensorflowConfig(**config)
    with pytest.raises(ConfigError, match="; type TensorflowConfig is needed"):
        TensorflowTrainer(lambda: None, tensorflow_config=config)


def test_a_port_is_kept_until_tensorflow_listens_on_it() -> None:
    port = _reserve_port()
    assert _reserve_port() == port, "TensorFlow's server of this process stays where it is"
    with socket.socket() as another, pytest.raises(OSError, match="in use"):
        another.bind(("", port))
    with socket.socket() as of_grpc:
        of_grpc.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        of_grpc.bind(("", port))
        of_grpc.listen()


def test_gpus_that_tensorflow_does_not_find_are_named() -> None:
    if tensorflow.config.list_physical_devices("GPU"):
        pytest.skip("TensorFlow finds a GPU here")
    with pytest.raises(ConfigError, match=r"CUDA_VISIBLE_DEVICES=4,6, but TensorFlow.* 0 GPUs"):
        show_gpus(("6",), visible=("4", "6"))


def test_a_strategy_that_comes_too_late_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    tensorflow.constant(1)
    task = {"type": "worker", "index": 0}
    cluster = {"worker": ["localhost:1", "localhost:2"]}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
    with pytest.raises(RuntimeError) as caught:
        tensorflow.distribute.MultiWorkerMirroredStrategy()
    explained = TensorflowBackend().explain(caught.value)
    assert "first thing of TensorFlow" in str(explained)
    assert TensorflowBackend().explain(ValueError("of the user's own")) is None
