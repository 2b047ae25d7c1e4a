"""`XGBoostPredictor`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hpctrain.data.formats import from_any
from hpctrain.gbdt.predictor import BoosterPredictor
from hpctrain.predict.feature_columns import select_frame

if TYPE_CHECKING:
    import xgboost


class XGBoostPredictor(BoosterPredictor):
    """Scores batches with an XGBoost model.

    If early stopping ended the model, it predicts with the rounds up to the best one, unless
    ``iteration_range=`` is given.

    Parameters
    ----------
    model
        The booster.
    preprocessor
        Preprocessor of batches.
    """

    framework = "xgboost"
    model_files = ("model.ubj", "model.json")
    needless_packages = ("sklearn",)

    def __init__(self, model: xgboost.Booster, preprocessor: Any = None) -> None:
        super().__init__(model, preprocessor)
        self.features = None if model.feature_names is None else tuple(model.feature_names)
        best = model.attr("best_iteration")
        self._rounds = (0, 0) if best is None else (0, int(best) + 1)

    @property
    def _missing(self) -> float:
        return np.nan if self.missing is None else self.missing

    def _made_up_row(self) -> np.ndarray[Any, Any]:
        return np.zeros((1, self.model.num_features()))

    def _predict_numpy(
        self,
        data: Any,
        feature_columns: Sequence[str] | Sequence[int] | None = None,
        dmatrix_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        matrix = self._select_matrix(data, feature_columns)
        kwargs.setdefault("iteration_range", self._rounds)
        if dmatrix_kwargs or not set(kwargs) <= {"iteration_range", "predict_type", "base_margin"}:
            return self._predict_dmatrix(matrix, dmatrix_kwargs, kwargs)
        # A DMatrix would copy the rows. The features are checked already.
        return self.model.inplace_predict(
            matrix, missing=self._missing, validate_features=False, **kwargs
        )

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
        return self._predict_dmatrix(frame, options, kwargs)

    def _predict_dmatrix(
        self, data: Any, dmatrix_kwargs: Mapping[str, Any] | None, kwargs: Mapping[str, Any]
    ) -> np.ndarray[Any, Any]:
        import xgboost

        matrix = xgboost.DMatrix(data, **{"missing": self._missing, **(dmatrix_kwargs or {})})
        predictions: np.ndarray[Any, Any] = self.model.predict(
            matrix, validate_features=False, **kwargs
        )
        return predictions
