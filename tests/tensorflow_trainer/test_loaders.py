"""Hostile models of Keras: no code of theirs runs unless they are trusted."""

from __future__ import annotations

import json
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import keras
import numpy as np
import pytest
import tf_keras

from hpctrain import CheckpointError
from hpctrain.tensorflow import TensorflowCheckpoint, TensorflowPredictor

pytestmark = [
    # Keras' own.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    # Nobody waits for the pager.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def _hostile(package: ModuleType, directory: Path, marker: Path) -> TensorflowCheckpoint:
    """Return a checkpoint whose Lambda is ``pydoc.pipepager(inputs, "touch MARKER")``."""
    layers = [package.layers.Input((3,)), package.layers.Lambda(lambda x: x, name="evil")]
    checkpoint = TensorflowCheckpoint.from_model(package.Sequential(layers), path=directory)
    path = directory / "model.keras"
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    config = json.loads(content["config.json"])
    (layer,) = (part for part in config["config"]["layers"] if part["class_name"] == "Lambda")
    layer["config"]["function"] = {
        "module": "pydoc",
        "class_name": "function",
        "config": "pipepager",
        "registered_name": "function",
    }
    layer["config"].pop("module", None)
    layer["config"]["function_type"] = "function"
    layer["config"]["arguments"] = {"cmd": f"touch {marker}"}
    content["config.json"] = json.dumps(config).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, part in content.items():
            archive.writestr(name, part)
    return checkpoint


@pytest.fixture
def started() -> Iterator[list[str]]:
    """What was started by `subprocess` meanwhile: a pager runs on when its caller has failed."""
    commands: list[str] = []
    is_over = False

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event == "subprocess.Popen" and not is_over:
            commands.append(str(arguments[1]))

    sys.addaudithook(hook)
    yield commands
    is_over = True


def test_a_lambda_of_keras_2_that_names_a_function_does_not_run_unless_it_is_trusted(
    tmp_path: Path, started: list[str]
) -> None:
    marker = tmp_path / "ran"
    checkpoint = _hostile(tf_keras, tmp_path / "c", marker)
    for load in (
        checkpoint.get_model,
        lambda: TensorflowPredictor.from_checkpoint(checkpoint),
    ):
        with pytest.raises(CheckpointError, match=r"can run code .* by tf_keras.*trusted=True"):
            load()
    assert not started
    # What this layer gives is no tensor, so there is no model; the command has been started.
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        checkpoint.get_model(trusted=True)
    assert str(marker) in started[0]


def test_a_lambda_of_keras_3_that_names_a_function_does_not_run(
    tmp_path: Path, started: list[str]
) -> None:
    checkpoint = _hostile(keras, tmp_path / "c", tmp_path / "ran")
    for load in (
        checkpoint.get_model,
        lambda: TensorflowPredictor.from_checkpoint(checkpoint),
    ):
        with pytest.raises(CheckpointError, match=r"model\.keras cannot be loaded"):
            load()
    assert not started


def test_a_model_of_an_older_keras_has_to_be_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = [keras.layers.Input((3,)), keras.layers.Dense(1)]
    checkpoint = TensorflowCheckpoint.from_model(keras.Sequential(layers), path=tmp_path)
    for version in ("3.11.3", "3.12.3", "3.13.1"):
        monkeypatch.setattr(keras, "__version__", version)
        with pytest.raises(CheckpointError, match=rf"keras {version}, .*trusted=True"):
            checkpoint.get_model()
    checkpoint.get_model(trusted=True)
    for version in ("3.12.4", "3.13.2", "3.14.0rc1", "4.0"):
        monkeypatch.setattr(keras, "__version__", version)
        assert checkpoint.get_model()(np.zeros((1, 3))).shape == (1, 1)
