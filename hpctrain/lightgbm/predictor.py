"""`LightGBMPredictor`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hpctrain.checkpoint import Checkpoint
from hpctrain.data.formats import from_any
from hpctrain.data.optional import require
from hpctrain.predict.batches import PREDICTIONS
from hpctrain.predict.features import encode_categories, select_frame, select_matrix
from hpctrain.predict.predictor import Predictor

if TYPE_CHECKING:
    import lightgbm


class LightGBMPredictor(Predictor):
    """Scores batches with a LightGBM model.

    Parameters
    ----------
    model
        The booster.
    preprocessor
        What batches go through before the model.
    """

    framework = "lightgbm"
    model_files = ("model.txt",)
    needless_packages = ("sklearn", "pandas")

    def __init__(self, model: lightgbm.Booster, preprocessor: Any = None) -> None:
        super().__init__(preprocessor)
        self.model = model
        self.features: tuple[str, ...] | None = tuple(model.feature_name())
        """Names of the features, in order."""
        self.categories: Mapping[str, Sequence[Any]] = {}
        """Values of columns with categories, by which they become numbers."""

    @classmethod
    def import_framework(cls) -> Any:
        """Import LightGBM. Not collective."""
        return require("lightgbm", to="to predict with its models", extra="lightgbm")

    @classmethod
    def from_checkpoint(
        cls, checkpoint: Checkpoint, trust_preprocessor: bool = False, **kwargs: Any
    ) -> LightGBMPredictor:
        """Return a predictor with the model of a checkpoint.

        Not collective. Nothing is unpickled.

        Parameters
        ----------
        checkpoint
            With ``model.txt``.
        trust_preprocessor
            Whether functions and objects in its preprocessor may be unpickled, which runs code.
        **kwargs
            Further arguments of the class.

        Raises
        ------
        ConfigError
            If the checkpoint is that of another framework.
        """
        features = cls.check_checkpoint(checkpoint)
        lightgbm = cls.import_framework()
        with checkpoint.as_directory():
            booster = lightgbm.Booster(model_file=str(cls._find_model(checkpoint)))
        preprocessor = checkpoint.get_preprocessor(trusted=trust_preprocessor)
        predictor = cls(booster, preprocessor=preprocessor, **kwargs)
        if features is not None and features.features is not None:
            # LightGBM writes blanks in names as underscores.
            predictor.features = features.features
            predictor.categories = features.categories
        return predictor

    def _predict_numpy(
        self,
        data: Any,
        feature_columns: Sequence[str] | Sequence[int] | None = None,
        **kwargs: Any,
    ) -> Any:
        if self.categories and not isinstance(data, np.ndarray):
            data = encode_categories(data, self.categories)
        matrix = select_matrix(data, self.features, feature_columns)
        return {PREDICTIONS: self.model.predict(matrix, **kwargs)}

    def _predict_pandas(
        self,
        data: Any,
        feature_columns: Sequence[str] | Sequence[int] | None = None,
        **kwargs: Any,
    ) -> Any:
        if self.categories:
            return self._predict_numpy(from_any(data), feature_columns, **kwargs)
        frame = select_frame(data, self.features, feature_columns)
        return {PREDICTIONS: self.model.predict(frame, **kwargs)}
