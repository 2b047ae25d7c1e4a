from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow
import tf_keras

from hpctrain import Checkpoint, CheckpointError, ConfigError
from hpctrain.predict.registry import find_predictor
from hpctrain.tensorflow import TensorflowCheckpoint, TensorflowPredictor

pytestmark = [
    # Keras' own.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file:UserWarning"),
]

X = np.random.default_rng(0).normal(size=(6, 3)).astype("float32")
both = pytest.mark.parametrize("package", [tf_keras, keras], ids=["Keras 2", "Keras 3"])


def make_model(package: ModuleType = tf_keras) -> Any:
    package.utils.set_random_seed(3)
    layers = [package.layers.Input((3,)), package.layers.Dense(2), package.layers.Dropout(0.9)]
    model = package.Sequential(layers)
    model.compile("adam", "mse")
    return model


@both
def test_a_model_comes_back_with_its_weights_and_its_optimizer(
    package: ModuleType, tmp_path: Path
) -> None:
    model = make_model(package)
    model.fit(X, X[:, :2], epochs=2, verbose=0)
    checkpoint = TensorflowCheckpoint.from_model(
        model, path=tmp_path, features=["a", "b", "c"], label="y"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["features.json", "model.keras"]
    assert json.loads((tmp_path / "features.json").read_text()) == {
        "framework": "tensorflow",
        "features": ["a", "b", "c"],
        "label": "y",
    }
    loaded = checkpoint.get_model(trusted=package is tf_keras)
    assert isinstance(loaded, package.Model)
    for was, now in zip(model.optimizer.variables, loaded.optimizer.variables, strict=True):
        assert np.array_equal(was.numpy(), now.numpy())
    assert np.array_equal(loaded(X).numpy(), model(X).numpy())


@both
def test_an_hdf5_file_is_taken(package: ModuleType, tmp_path: Path) -> None:
    model = make_model(package)
    model.save(tmp_path / "mine.h5")
    checkpoint = TensorflowCheckpoint.from_h5(tmp_path / "mine.h5")
    with pytest.raises(CheckpointError, match=r"can run code.*trusted=True"):
        checkpoint.get_model()
    loaded = checkpoint.get_model(compile=False, trusted=True)
    assert np.array_equal(loaded(X).numpy(), model(X).numpy())
    of_weights = checkpoint.get_model(lambda: make_model(package))
    assert np.array_equal(of_weights(X).numpy(), model(X).numpy())


def test_a_saved_model_is_taken(tmp_path: Path) -> None:
    model = make_model()
    model.save(tmp_path / "mine", save_format="tf")
    checkpoint = TensorflowCheckpoint.from_saved_model(tmp_path / "mine")
    with pytest.raises(CheckpointError, match=r"can run code.*trusted=True"):
        TensorflowPredictor.from_checkpoint(checkpoint)
    predictor = TensorflowPredictor.from_checkpoint(checkpoint, trusted=True)
    assert np.array_equal(predictor.predict(X)["predictions"], model(X).numpy())


def test_a_class_of_ones_own_needs_its_definition() -> None:
    class Twice(tf_keras.Model):
        def __init__(self, **arguments: Any) -> None:
            super().__init__(**arguments)
            self.dense = tf_keras.layers.Dense(1)

        def call(self, inputs: Any) -> Any:
            return 2 * self.dense(inputs)

    def make_twice() -> Any:
        model = Twice()
        model(X)
        return model

    model = make_twice()
    checkpoint = TensorflowCheckpoint.from_model(model)
    with pytest.raises(CheckpointError, match=r"Twice.*custom_objects=.*model_definition="):
        checkpoint.get_model(trusted=True)
    for loaded in (
        checkpoint.get_model(make_twice),
        checkpoint.get_model(custom_objects={"Twice": Twice}, trusted=True),
    ):
        assert np.array_equal(loaded(X).numpy(), model(X).numpy())


def test_code_in_a_checkpoint_does_not_run() -> None:
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Lambda(lambda x: x)])
    with pytest.raises(CheckpointError, match="Lambda"):
        TensorflowCheckpoint.from_model(model).get_model()


def test_a_directory_without_a_model_and_one_that_is_damaged_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"none of model\.keras, model\.h5, saved_model"):
        TensorflowCheckpoint(tmp_path).get_model()
    (tmp_path / "model.keras").write_bytes(b"no zip file")
    with pytest.raises(CheckpointError, match=r"model\.keras cannot be loaded"):
        TensorflowCheckpoint(tmp_path).get_model()


@both
def test_a_predictor_scores_without_dropout_in_the_form_that_it_is_given(
    package: ModuleType,
) -> None:
    model = make_model(package)
    checkpoint = TensorflowCheckpoint.from_model(model, features=["a", "b", "c"])
    expected = model(X, training=False).numpy()
    assert find_predictor(checkpoint) is TensorflowPredictor
    predictor = TensorflowPredictor.from_checkpoint(checkpoint, trusted=package is tf_keras)
    assert np.array_equal(predictor.predict(X)["predictions"], expected)
    frame = pd.DataFrame({"c": X[:, 2], "b": X[:, 1].astype(">f8"), "a": X[:, 0]})
    assert np.allclose(predictor.predict(frame).to_numpy(), expected)
    with pytest.raises(ConfigError, match="has no 'b'"):
        predictor.predict(frame.drop(columns="b"))
    with pytest.raises(ConfigError, match="2 columns, but the model was trained on 3"):
        predictor.predict(X[:, :2])


def test_a_model_with_two_inputs_and_two_outputs_takes_and_gives_columns() -> None:
    a, b = tf_keras.Input((1,), name="a"), tf_keras.Input((1,), name="b")
    model = tf_keras.Model({"a": a, "b": b}, {"sum": a + b, "difference": a - b})
    batch = {"a": np.array([[3.0], [4.0]]), "b": np.array([[1], [2]])}
    predicted = TensorflowPredictor(model=model).predict(batch, dtype=tensorflow.float32)
    assert predicted["sum"].tolist() == [[4], [6]]
    assert predicted["difference"].dtype == np.float32


def test_a_model_that_returns_something_else_gets_a_next_step() -> None:
    with pytest.raises(ConfigError, match=r"returned a tuple.*Override call_model"):
        TensorflowPredictor(model=lambda x, training: (x, x)).predict(X)
    with pytest.raises(ConfigError, match=r"needs model="):
        TensorflowPredictor()


def test_a_checkpoint_of_another_framework_is_refused(tmp_path: Path) -> None:
    (tmp_path / "features.json").write_text('{"framework": "torch"}')
    with pytest.raises(ConfigError, match="holds a model of torch"):
        TensorflowPredictor.from_checkpoint(Checkpoint(tmp_path))
