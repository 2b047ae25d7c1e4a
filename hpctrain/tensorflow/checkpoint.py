"""`TensorflowCheckpoint`: a Keras model in a directory."""

from __future__ import annotations

import json
import re
import shutil
import zipfile
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpctrain.checkpoint import Checkpoint
from hpctrain.data.optional import require
from hpctrain.errors import CheckpointError, HpctrainError
from hpctrain.predict.features import describe_model

if TYPE_CHECKING:
    from tensorflow import keras

KERAS_NAME = "model.keras"
H5_NAME = "model.h5"
SAVED_MODEL_NAME = "saved_model"
# Older releases of Keras 3 run code of a model.keras in spite of safe_mode.
_SAFE_KERAS = ((3, 12, 4), (3, 13, 2))


class TensorflowCheckpoint(Checkpoint):
    """A checkpoint with a model of Keras 2 or Keras 3.

    The ``model.keras`` of Keras 3 holds architecture, weights and optimizer, and no code: layers
    that have some are refused. That of Keras 2 (``tf_keras``) may name any function of any module,
    which is called; it, the HDF5 files of Keras and SavedModels may run code, so they have to be
    trusted.
    """

    # Its methods read the directory at once.
    _may_be_made_later = False

    @classmethod
    def from_model(
        cls,
        model: keras.Model,
        *,
        path: str | PathLike[str] | None = None,
        preprocessor: Any = None,
        features: Sequence[str] | None = None,
        label: str | None = None,
    ) -> TensorflowCheckpoint:
        """Return a checkpoint with a model.

        Collective for a model that was made under a strategy: it may have weights of which each
        rank knows its own part only.

        Parameters
        ----------
        model
            The model, of ``tf_keras`` or of ``keras``.
        path
            Directory, made if needed. None makes a temporary one that lives as long as the handle.
        preprocessor
            What batches go through before the model.
        features
            Names of the model's inputs, in order, if it takes a matrix with a column for each.
        label
            Column that the model predicts.
        """
        checkpoint = cls._make(path)
        model.save(checkpoint.path / KERAS_NAME)
        return checkpoint._describe(preprocessor, features, label)

    @classmethod
    def from_h5(
        cls,
        file_path: str | PathLike[str],
        *,
        path: str | PathLike[str] | None = None,
        preprocessor: Any = None,
        features: Sequence[str] | None = None,
        label: str | None = None,
    ) -> TensorflowCheckpoint:
        """Return a checkpoint with a copy of an HDF5 file that ``model.save()`` wrote.

        Not collective.

        Parameters
        ----------
        file_path
            The file.
        path, preprocessor, features, label
            As in `from_model`.
        """
        checkpoint = cls._make(path)
        shutil.copyfile(file_path, checkpoint.path / H5_NAME)
        return checkpoint._describe(preprocessor, features, label)

    @classmethod
    def from_saved_model(
        cls,
        dir_path: str | PathLike[str],
        *,
        path: str | PathLike[str] | None = None,
        preprocessor: Any = None,
        features: Sequence[str] | None = None,
        label: str | None = None,
    ) -> TensorflowCheckpoint:
        """Return a checkpoint with a copy of a directory that ``model.save()`` of Keras 2 wrote.

        Not collective.

        Parameters
        ----------
        dir_path
            The directory.
        path, preprocessor, features, label
            As in `from_model`.
        """
        checkpoint = cls._make(path)
        shutil.copytree(dir_path, checkpoint.path / SAVED_MODEL_NAME)
        return checkpoint._describe(preprocessor, features, label)

    def get_model(
        self,
        model_definition: Callable[[], keras.Model] | None = None,
        *,
        custom_objects: Mapping[str, Any] | None = None,
        compile: bool = True,
        trusted: bool = False,
    ) -> keras.Model:
        """Return the model. Not collective; inside ``strategy.scope()`` all ranks must call it.

        Parameters
        ----------
        model_definition
            A function that makes the model, and compiles it if it is to be trained. Only weights,
            and the optimizer's state, are then read: for models that are a class of their own.
        custom_objects
            Classes and functions of the model that Keras does not know, by name.
        compile
            Whether loss, metrics and optimizer are loaded too.
        trusted
            Whether the architecture may be read from a ``model.keras`` of Keras 2, ``model.h5`` or
            ``saved_model``, which can run code. Allow it for what is your own.

        Raises
        ------
        CheckpointError
            If there is no model, it cannot be loaded, or it is not trusted.
        """
        with self.as_directory() as directory:
            return load_model(
                Path(directory),
                model_definition,
                custom_objects=custom_objects,
                compile=compile,
                trusted=trusted,
            )

    def _describe(
        self, preprocessor: Any, features: Sequence[str] | None, label: str | None
    ) -> TensorflowCheckpoint:
        return describe_model(
            self, framework="tensorflow", preprocessor=preprocessor, features=features, label=label
        )


def load_model(
    directory: Path,
    model_definition: Callable[[], Any] | None = None,
    *,
    custom_objects: Mapping[str, Any] | None = None,
    compile: bool = True,
    trusted: bool = False,
) -> Any:
    """Return the model in a directory, by the Keras that wrote it. Not collective.

    Raises
    ------
    CheckpointError
        If there is none, it cannot be loaded, or it is not trusted.
    """
    names = (KERAS_NAME, H5_NAME, SAVED_MODEL_NAME)
    path = next((directory / name for name in names if (directory / name).exists()), None)
    if path is None:
        raise CheckpointError(
            f"{directory} has none of {', '.join(names)}. Write a model with "
            f"TensorflowCheckpoint.from_model()."
        )
    try:
        if model_definition is not None:
            model = model_definition()
            model.load_weights(path)
            return model
        if not trusted and path.name != KERAS_NAME:
            raise _unsafe(path, "")
        package = _package_of(path)
        if not trusted and package == "tf_keras":
            raise _unsafe(path, " by tf_keras")
        keras = require(package, to=f"to load {path}", extra="tensorflow")
        if not trusted and not _is_safe(keras.__version__):
            raise _unsafe(path, f" by keras {keras.__version__}, and from 3.13.2 on it cannot")
        safety = {} if trusted or package == "tf_keras" else {"safe_mode": True}
        return keras.models.load_model(
            path, custom_objects=custom_objects, compile=compile, **safety
        )
    except HpctrainError:
        raise
    except Exception as error:  # whatever a damaged file brings about
        raise CheckpointError(
            f"the model in {path} cannot be loaded: {error} A class of one's own needs "
            f"custom_objects={{'Name': Name}}, or model_definition=, a function that makes the "
            f"model."
        ) from error


def _unsafe(path: Path, how: str) -> CheckpointError:
    return CheckpointError(
        f"{path} can run code when it is loaded{how}. If it is your own, load it with "
        f"trusted=True; or give model_definition=, a function that makes the model, and only "
        f"weights are read."
    )


def _is_safe(version: str) -> bool:
    """Return whether a Keras runs no code of a model that is not trusted."""
    numbers = tuple(map(int, re.findall(r"\d+", version)[:3]))
    last_for_310, safe = _SAFE_KERAS
    return numbers >= safe or last_for_310 <= numbers < (3, 13)


def _package_of(path: Path) -> str:
    """Return the package of the Keras that wrote a model: each reads its own only."""
    if path.name == SAVED_MODEL_NAME:
        return "tf_keras"
    if path.name == H5_NAME:
        import h5py

        with h5py.File(path) as file:
            version = file.attrs["keras_version"]
    else:
        with zipfile.ZipFile(path) as archive:
            version = json.loads(archive.read("metadata.json"))["keras_version"]
    return "tf_keras" if str(version).startswith("2.") else "keras"
