"""`BoosterPredictor`: base class of the predictors of XGBoost and LightGBM."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np

from hpctrain.checkpoint import Checkpoint
from hpctrain.data.optional import require
from hpctrain.errors import CheckpointError
from hpctrain.gbdt.model_file import read_booster
from hpctrain.predict.categories import encode_categories
from hpctrain.predict.feature_columns import select_matrix
from hpctrain.predict.features import FEATURES_NAME
from hpctrain.predict.predictor import Predictor

P = TypeVar("P", bound="BoosterPredictor")


class BoosterPredictor(Predictor, abc.ABC):
    """Scores batches with boosted trees.

    Parameters
    ----------
    model
        The booster.
    preprocessor
        Preprocessor of batches.
    """

    def __init__(self, model: Any, preprocessor: Any = None) -> None:
        super().__init__(preprocessor)
        self.model = model
        self.categories: Mapping[str, Sequence[Any]] = {}
        """Values of columns with categories; their indices are the codes."""
        self.missing: float | None = None
        """Value that stands for a missing one, beside NaN."""

    framework: ClassVar[str]
    """Name of the library, and of the extra that installs it."""

    @classmethod
    def import_framework(cls) -> Any:
        """Import the library. Not collective."""
        return require(cls.framework, to="to predict with its models", extra=cls.framework)

    @classmethod
    def read_model(cls, path: Path) -> Any:
        """Return the booster in a file. Not collective."""
        cls.import_framework()
        return read_booster(path, framework=cls.framework)

    @classmethod
    def from_checkpoint(
        cls: type[P], checkpoint: Checkpoint, trust_preprocessor: bool = False, **kwargs: Any
    ) -> P:
        """Return a predictor with the model of a checkpoint.

        Not collective. No model is unpickled.

        Parameters
        ----------
        checkpoint
            A checkpoint with a model.
        trust_preprocessor
            Whether to unpickle functions and objects in its preprocessor, which runs code.
        **kwargs
            Further arguments of the class.

        Raises
        ------
        ConfigError
            If the checkpoint is of another framework.
        CheckpointError
            If the model is damaged.
        """
        features = cls.check_checkpoint(checkpoint)
        with checkpoint.as_directory():
            path = cls._find_model(checkpoint)
            assert path is not None, "check_checkpoint() has found it"
            booster = cls.read_model(path)
        preprocessor = checkpoint.get_preprocessor(trusted=trust_preprocessor)
        predictor = cls(booster, preprocessor=preprocessor, **kwargs)
        if features is not None and features.features is not None:
            row = predictor._made_up_row()
            if row is not None and row.shape[1] != len(features.features):
                raise CheckpointError(
                    f"{path} is a model of {row.shape[1]} features, but {FEATURES_NAME} beside it "
                    f"names {len(features.features)}: one of them is damaged, or not of this "
                    f"model. Use another checkpoint, or save the model again."
                )
            # The names in the model may differ: LightGBM replaces blanks by underscores.
            predictor.features = features.features
            predictor.label = features.label
            predictor.categories = features.categories
            predictor.missing = features.missing
        return predictor

    def _select_matrix(
        self, data: Any, feature_columns: Sequence[str] | Sequence[int] | None
    ) -> Any:
        if self.categories and not isinstance(data, np.ndarray):
            data = encode_categories(data, self.categories)
        return select_matrix(data, self.features, feature_columns)
