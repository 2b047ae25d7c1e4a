"""`XGBoostPredictor`."""

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
    import xgboost


class XGBoostPredictor(Predictor):
    """Scores batches with an XGBoost model.

    Where the model was stopped early, the rounds up to the best one predict, unless
    ``iteration_range=`` says otherwise.

    Parameters
    ----------
    model
        The booster.
    preprocessor
        What batches go through before the model.
    """

    framework = "xgboost"
    model_files = ("model.ubj", "model.json")
    needless_packages = ("sklearn",)

    def __init__(self, model: xgboost.Booster, preprocessor: Any = None) -> None:
        super().__init__(preprocessor)
        self.model = model
        self.features = None if model.feature_names is None else tuple(model.feature_names)
        """Names of the features, in order."""
        self.categories: Mapping[str, Sequence[Any]] = {}
        """Values of columns with categories, by which they become numbers."""
        best = model.attr("best_iteration")
        self._rounds = (0, 0) if best is None else (0, int(best) + 1)

    @classmethod
    def import_framework(cls) -> Any:
        """Import XGBoost. Not collective."""
        return require("xgboost", to="to predict with its models", extra="xgboost")

    @classmethod
    def from_checkpoint(
        cls, checkpoint: Checkpoint, trust_preprocessor: bool = False, **kwargs: Any
    ) -> XGBoostPredictor:
        """Return a predictor with the model of a checkpoint.

        Not collective. Nothing is unpickled.

        Parameters
        ----------
        checkpoint
            With ``model.ubj``.
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
        xgboost = cls.import_framework()
        with checkpoint.as_directory():
            booster = xgboost.Booster(model_file=str(cls._find_model(checkpoint)))
        preprocessor = checkpoint.get_preprocessor(trusted=trust_preprocessor)
        predictor = cls(booster, preprocessor=preprocessor, **kwargs)
        if features is not None and features.features is not None:
            predictor.features = features.features
            predictor.categories = features.categories
        return predictor

    def _predict_numpy(
        self,
        data: Any,
        feature_columns: Sequence[str] | Sequence[int] | None = None,
        dmatrix_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        if self.categories and not isinstance(data, np.ndarray):
            data = encode_categories(data, self.categories)
        matrix = select_matrix(data, self.features, feature_columns)
        kwargs.setdefault("iteration_range", self._rounds)
        if dmatrix_kwargs or not set(kwargs) <= {"iteration_range", "predict_type", "base_margin"}:
            return {PREDICTIONS: self._predict_dmatrix(matrix, dmatrix_kwargs, kwargs)}
        # Without a DMatrix, which would be a copy. The features have been compared already.
        return {PREDICTIONS: self.model.inplace_predict(matrix, validate_features=False, **kwargs)}

    def _predict_pandas(
        self,
        data: Any,
        feature_columns: Sequence[str] | Sequence[int] | None = None,
        dmatrix_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        if self.categories:
            return self._predict_numpy(from_any(data), feature_columns, dmatrix_kwargs, **kwargs)
        frame = select_frame(data, self.features, feature_columns)
        kwargs.setdefault("iteration_range", self._rounds)
        options = {"enable_categorical": True, **(dmatrix_kwargs or {})}
        return {PREDICTIONS: self._predict_dmatrix(frame, options, kwargs)}

    def _predict_dmatrix(
        self, data: Any, dmatrix_kwargs: Mapping[str, Any] | None, kwargs: Mapping[str, Any]
    ) -> np.ndarray[Any, Any]:
        import xgboost

        matrix = xgboost.DMatrix(data, **(dmatrix_kwargs or {}))
        predictions: np.ndarray[Any, Any] = self.model.predict(
            matrix, validate_features=False, **kwargs
        )
        return predictions
