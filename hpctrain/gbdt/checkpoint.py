"""`ModelCheckpoint`: a directory with a model in its library's own format, and its features.

`BoosterCheckpoint` is the base of those of XGBoost and LightGBM.
"""

from __future__ import annotations

import abc
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from hpctrain.bulk.digest import digest_file
from hpctrain.checkpoint import Checkpoint
from hpctrain.errors import CheckpointError, ConfigError
from hpctrain.gbdt.features import Features
from hpctrain.gbdt.model_file import read_booster
from hpctrain.predict.features import FEATURES_NAME

C = TypeVar("C", bound="ModelCheckpoint[Any]")
M = TypeVar("M")


class ModelCheckpoint(Checkpoint, abc.ABC, Generic[M]):
    """A checkpoint that holds one model of one framework."""

    # Its methods read the directory at once.
    _may_be_made_later = False

    framework: ClassVar[str]
    """Framework in ``features.json``."""
    model_file: ClassVar[str]
    """Name of the model's file."""
    has_digest: ClassVar[bool] = True
    """Whether ``features.json`` has a digest of it. False if equal models have different files: all
    ranks may save one."""

    @classmethod
    @abc.abstractmethod
    def write_model(cls, model: M, path: Path) -> None:
        """Write a model into a file. Not collective."""

    @classmethod
    @abc.abstractmethod
    def read_model(cls, path: Path) -> M:
        """Return the model that `write_model` wrote. Not collective."""

    @classmethod
    @abc.abstractmethod
    def features_of(cls, model: M) -> Features:
        """Return the features that are stored in a model. Not collective."""

    @classmethod
    def save(
        cls,
        model: M,
        directory: str | PathLike[str],
        *,
        features: Features | None = None,
        filename: str | None = None,
    ) -> None:
        """Write a model and its ``features.json`` into a directory. Not collective."""
        path = Path(directory) / (filename or cls.model_file)
        cls.write_model(model, path)
        known = cls.features_of(model) if features is None else features
        digests = {path.name: digest_file(path)[1]} if cls.has_digest else {}
        known.write(directory, framework=cls.framework, digests=digests)

    @classmethod
    def load(cls, directory: str | PathLike[str], *, filename: str | None = None) -> M:
        """Return the model in a directory. Not collective.

        Raises
        ------
        CheckpointError
            If there is none, or the directory belongs to another framework.
        """
        return cls.read_model(cls.check(directory, filename=filename))

    @classmethod
    def load_to_resume(cls, directory: str | PathLike[str]) -> tuple[M, Features]:
        """Return the model in a directory, and its features. Not collective.

        Raises
        ------
        CheckpointError
            If there is none, or the directory belongs to another framework.
        """
        model = cls.load(directory)
        if (Path(directory) / FEATURES_NAME).exists():
            return model, Features.read(directory, framework=cls.framework)
        return model, cls.features_of(model)

    @classmethod
    def check(cls, directory: str | PathLike[str], *, filename: str | None = None) -> Path:
        """Return the path of the model's file. Not collective.

        Raises
        ------
        CheckpointError
            If there is none, or the directory belongs to another framework.
        """
        path = Path(directory) / (filename or cls.model_file)
        if not path.exists():
            # Raises a better error if the checkpoint is of another framework.
            Features.read(directory, framework=cls.framework)
            raise CheckpointError(
                f"{directory} has no {path.name}, so no model was saved there. Give another "
                f"checkpoint, or the filename= of the model."
            )
        return path

    @classmethod
    def from_model(
        cls: type[C],
        model: M | None = None,
        *,
        booster: M | None = None,
        features: Features | None = None,
        preprocessor: Any = None,
        path: str | PathLike[str] | None = None,
    ) -> C:
        """Save a model and return a handle on its directory. Not collective.

        Parameters
        ----------
        model, booster
            The model, by either name.
        features
            Its features. None uses those that are stored in the model.
        preprocessor
            Preprocessor to store beside the model.
        path
            The directory, created if needed. None creates a temporary one, which exists as long as
            this handle.

        Raises
        ------
        ConfigError
            If there is no model, or two.
        """
        if (model is None) == (booster is None):
            given = "no model" if model is None else "two models, model= and booster="
            raise ConfigError(f"{cls.__name__}.from_model() was given {given}. Give one model.")
        model = booster if model is None else model
        checkpoint = cls._make(path)
        cls.save(model, checkpoint.path, features=features)
        if preprocessor is not None:
            checkpoint.set_preprocessor(preprocessor)
        return checkpoint

    def get_model(self) -> M:
        """Return the model. Not collective.

        It takes the matrix that ``get_features().matrix(batch)`` returns. A data frame with columns
        of pandas' category type works too with LightGBM, whose model stores the categories. With
        XGBoost the frame must have the categories of ``get_features()``, in that order.

        Raises
        ------
        CheckpointError
            If the checkpoint has none, or is of another framework.
        """
        with self.as_directory() as directory:
            return self.load(directory)

    def get_features(self) -> Features:
        """Return the features of the model. Not collective.

        Raises
        ------
        CheckpointError
            If the checkpoint has no ``features.json``, or is of another framework.
        """
        with self.as_directory() as directory:
            return Features.read(directory, framework=self.framework)


class BoosterCheckpoint(ModelCheckpoint[M], abc.ABC):
    """A checkpoint that holds a booster, in its library's own format: opening it runs no code."""

    @classmethod
    def write_model(cls, model: Any, path: Path) -> None:
        """Write a booster into a file; LightGBM writes the best rounds only. Not collective."""
        model.save_model(path)

    @classmethod
    def read_model(cls, path: Path) -> M:
        """Return the booster of a file. Not collective.

        Raises
        ------
        CheckpointError
            If it is damaged.
        """
        booster: M = read_booster(path, framework=cls.framework)
        return booster
