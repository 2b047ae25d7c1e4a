"""`SklearnCheckpoint`: a directory with ``model.skops`` and ``features.json``."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar

from hpctrain import pickle_trust
from hpctrain.constants import MODEL_KEY
from hpctrain.data.optional import require
from hpctrain.errors import CheckpointError
from hpctrain.gbdt.checkpoint import ModelCheckpoint
from hpctrain.gbdt.features import Features
from hpctrain.gbdt.model_file import first_line, verify_digest
from hpctrain.writers import read_judged

PICKLED_NAME = MODEL_KEY
"""Ray Train 2.0 to 2.6 pickle an estimator into a file of this name."""


class SklearnCheckpoint(ModelCheckpoint[Any]):
    """A checkpoint that holds an estimator, in the format of skops.

    Opening it creates objects of types that skops trusts, and of scikit-learn's classes. Other
    types, and the pickle ``model`` that Ray Train writes, run code: they are opened if only this
    user can have written them, or if they are trusted.
    """

    framework: ClassVar[str] = "sklearn"
    model_file: ClassVar[str] = "model.skops"
    has_digest: ClassVar[bool] = False

    @classmethod
    def write_model(cls, model: Any, path: Path) -> None:
        """Write an estimator into a file. Not collective."""
        skops_io = require("skops.io", to="to save scikit-learn's models", extra="sklearn")
        skops_io.dump(model, path)

    @classmethod
    def read_model(cls, path: Path, trusted: Sequence[str] | bool = ()) -> Any:
        """Return the estimator of a file. Not collective."""
        if path.name == PICKLED_NAME:
            return _unpickle(path, trusted=trusted is True)
        skops_io = require("skops.io", to="to load scikit-learn's models", extra="sklearn")
        verify_digest(path)
        try:
            asked = skops_io.get_untrusted_types(file=path)
            named = () if isinstance(trusted, bool) else trusted
            known = {*named, *filter(_is_class_of_sklearn, asked)}
            if not (strange := sorted(set(asked) - known)):
                return skops_io.load(path, trusted=sorted(known))
            content, foreign = read_judged(path)
            if trusted is True or foreign is None:
                everything = skops_io.get_untrusted_types(data=content)
                return skops_io.loads(content, trusted=everything)
        except Exception as error:  # a damaged file can raise anything
            raise _damaged(path, error) from error
        raise CheckpointError(
            f"{path} holds the types {', '.join(strange)}, and creating them would run their "
            f"code. {pickle_trust.advice(path.parent, foreign, argument=f'trusted={strange!r}')} "
            f"SklearnCheckpoint.get_estimator() and SklearnPredictor.from_checkpoint() take it."
        )

    @classmethod
    def features_of(cls, model: Any) -> Features:
        """Return the features that an estimator stores. Not collective."""
        names = getattr(model, "feature_names_in_", None)
        if names is None:
            names = [f"f{index}" for index in range(getattr(model, "n_features_in_", 0))]
        return Features(names=tuple(map(str, names)))

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        *,
        path: str | PathLike[str] | None = None,
        preprocessor: Any = None,
    ) -> SklearnCheckpoint:
        """Save an estimator and return a handle on its directory. Not collective.

        Parameters
        ----------
        estimator
            A fitted estimator.
        path
            The directory, created if needed. None creates a temporary one, which exists as long as
            this handle.
        preprocessor
            Preprocessor to store beside the estimator.
        """
        return cls.from_model(estimator, preprocessor=preprocessor, path=path)

    @classmethod
    def check(cls, directory: str | PathLike[str], *, filename: str | None = None) -> Path:
        """Return the path of the model's file. Not collective.

        Raises
        ------
        CheckpointError
            If there is none, or the directory belongs to another framework.
        """
        pickled = Path(directory) / PICKLED_NAME
        is_of_ray = not (Path(directory) / cls.model_file).exists() and pickled.is_file()
        if filename is None and is_of_ray:
            return pickled
        return super().check(directory, filename=filename)

    def get_estimator(self, trusted: Sequence[str] | bool = ()) -> Any:
        """Return the estimator. Not collective.

        Parameters
        ----------
        trusted
            Further types to create, as ``module.Class``, even if another user can have written
            them. True allows all types, and a pickle.

        Raises
        ------
        CheckpointError
            If the checkpoint has none, is of another framework, or has objects of other types.
        """
        with self.as_directory() as directory:
            return self.read_model(self.check(directory), trusted)


def _unpickle(path: Path, *, trusted: bool) -> Any:
    from hpctrain.plan import spec

    content = pickle_trust.read_pickle(path, trusted=trusted, what="a pickled estimator")
    try:
        return spec.unpack(content)
    except Exception as error:  # its code can raise anything
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"the estimator in {path} is damaged, or of another scikit-learn: {first_line(error)}. Use "
        f"another checkpoint, or train again."
    )


def _is_class_of_sklearn(name: str) -> bool:
    """Return whether a name is that of a class of scikit-learn: a function could do anything."""
    module, _, attribute = name.rpartition(".")
    if not module.startswith("sklearn."):
        return False
    try:
        found = getattr(import_module(module), attribute, None)
    except ImportError:
        return False
    # Modules also contain classes of other packages, such as TemporaryDirectory and Thread.
    return isinstance(found, type) and found.__module__.startswith("sklearn.")
