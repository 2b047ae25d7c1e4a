"""`ModelCheckpoint`: a directory with a model in its library's own format, and its features.

`BoosterCheckpoint` is that of XGBoost and LightGBM.
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
    """What ``features.json`` says."""
    model_file: ClassVar[str]
    """Name of the model's file."""
    has_digest: ClassVar[bool] = True
    """Whether ``features.json`` has a digest of it. Not where equal models have unlike files: all
    ranks may save one."""

    @classmethod
    @abc.abstractmethod
    def write_model(cls, model: M, path: Path) -> None:
        """Write a model into a file. Not collective."""

    @classmethod
    @abc.abstractmethod
    def read_model(cls, path: Path) -> M:
        """Return what `write_model` wrote. Not collective."""

    @classmethod
    @abc.abstractmethod
    def features_of(cls, model: M) -> Features:
        """Return what a model itself knows of its features. Not collective."""

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
            # Says which framework it is of, if it is of one.
            Features.read(directory, framework=cls.framework)
            raise CheckpointError(f"{directory} has no {path.name}: no model was saved there.")
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
            What its features are called. None takes what the model knows.
        preprocessor
            Stored beside the model.
        path
            The directory, made if needed. None makes a temporary one, which lives as long as this
            handle.

        Raises
        ------
        ConfigError
            If there is no model, or two.
        """
        if (model is None) == (booster is None):
            raise ConfigError(f"{cls.__name__}.from_model() takes one model.")
        model = booster if model is None else model
        checkpoint = cls._make(path)
        cls.save(model, checkpoint.path, features=features)
        if preprocessor is not None:
            checkpoint.set_preprocessor(preprocessor)
        return checkpoint

    def get_model(self) -> M:
        """Return the model. Not collective.

        It takes the matrix that ``get_features().matrix(batch)`` gives. A data frame with columns
        of pandas' category type is coded alike by LightGBM's model, which knows the categories.
        XGBoost's does not: there the frame has to have the categories of ``get_features()``, in
        that order.

        Raises
        ------
        CheckpointError
            If the checkpoint has none, or is of another framework.
        """
        with self.as_directory() as directory:
            return self.load(directory)

    def get_features(self) -> Features:
        """Return what the model's features are. Not collective.

        Raises
        ------
        CheckpointError
            If the checkpoint does not say, or is of another framework.
        """
        with self.as_directory() as directory:
            return Features.read(directory, framework=self.framework)


class BoosterCheckpoint(ModelCheckpoint[M], abc.ABC):
    """A checkpoint that holds a booster, in its library's own format: opening it runs no code."""

    @classmethod
    def write_model(cls, model: Any, path: Path) -> None:
        """Write a booster into a file: its best rounds, if LightGBM knows them. Not collective."""
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
