"""`LightGBMPredictor`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hpctrain.data.formats import from_any
from hpctrain.gbdt.predictor import BoosterPredictor
from hpctrain.predict.feature_columns import select_frame

if TYPE_CHECKING:
    import lightgbm


class LightGBMPredictor(BoosterPredictor):
    """Scores batches with a LightGBM model.

    Parameters
    ----------
    model
        The booster.
    preprocessor
        Preprocessor of batches.
    """

    framework = "lightgbm"
    model_files = ("model.txt",)
    needless_packages = ("sklearn", "pandas")

    def __init__(self, model: lightgbm.Booster, preprocessor: Any = None) -> None:
        super().__init__(model, preprocessor)
        self.features = tuple(model.feature_name())

    def _made_up_row(self) -> np.ndarray[Any, Any]:
        return np.zeros((1, self.model.num_feature()))

    def _predict_numpy(
        self,
        data: Any,
        feature_columns: Sequence[str] | Sequence[int] | None = None,
        **kwargs: Any,
    ) -> Any:
        matrix = self._select_matrix(data, feature_columns)
        if matrix.dtype not in (np.float32, np.float64):
            # LightGBM would round it to float32.
            matrix = matrix.astype(np.float64)
        return self.model.predict(matrix, **kwargs)

    def _predict_pandas(
        self,
        data: Any,
        feature_columns: Sequence[str] | Sequence[int] | None = None,
        **kwargs: Any,
    ) -> Any:
        if self.categories:
            return self._predict_numpy(from_any(data), feature_columns, **kwargs)
        frame = select_frame(data, self.features, feature_columns)
        return self.model.predict(frame, **kwargs)
