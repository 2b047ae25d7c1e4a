"""`SklearnPredictor`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hpctrain.checkpoint import Checkpoint
from hpctrain.predict.feature_columns import (
    feature_frame,
    select_columns,
    select_frame,
    select_matrix,
)
from hpctrain.predict.predictor import Predictor
from hpctrain.sklearn.checkpoint import PICKLED_NAME, SklearnCheckpoint

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator


class SklearnPredictor(Predictor):
    """Scores batches with a scikit-learn estimator.

    Parameters
    ----------
    estimator
        The fitted estimator.
    preprocessor
        Preprocessor of batches.
    """

    framework = "sklearn"
    model_files = ("model.skops", PICKLED_NAME)

    def __init__(self, estimator: BaseEstimator, preprocessor: Any = None) -> None:
        super().__init__(preprocessor)
        self.estimator = estimator
        names = getattr(estimator, "feature_names_in_", None)
        self._is_fitted_on_frames = names is not None
        self.features = None if names is None else tuple(map(str, names))

    @classmethod
    def from_checkpoint(
        cls,
        checkpoint: Checkpoint,
        trusted: Sequence[str] | bool = (),
        trust_preprocessor: bool = False,
        **kwargs: Any,
    ) -> SklearnPredictor:
        """Return a predictor with the estimator of a checkpoint.

        Not collective. skops creates only known types, unless only this user can have written the
        file, or the types are trusted.

        Parameters
        ----------
        checkpoint
            A checkpoint with ``model.skops``, or the pickle ``model`` of Ray Train.
        trusted
            Further types to create, as ``module.Class``, even if another user can have written
            them. True allows all types, and a pickle.
        trust_preprocessor
            Whether to unpickle functions and objects in its preprocessor, which runs code.
        **kwargs
            Further arguments of the class.

        Raises
        ------
        ConfigError
            If the checkpoint is of another framework.
        CheckpointError
            If the estimator holds types that are not trusted.
        """
        features = cls.check_checkpoint(checkpoint)
        estimator = SklearnCheckpoint(checkpoint.path).get_estimator(trusted)
        preprocessor = checkpoint.get_preprocessor(trusted=trust_preprocessor)
        predictor = cls(estimator, preprocessor=preprocessor, **kwargs)
        predictor._take_names(features)
        return predictor

    def _made_up_row(self) -> np.ndarray[Any, Any] | None:
        width = getattr(self.estimator, "n_features_in_", None)
        return None if width is None else np.zeros((1, width))

    def _predict_numpy(
        self,
        data: Any,
        feature_columns: Sequence[str] | Sequence[int] | None = None,
        num_estimator_cpus: int | None = None,
        method: str = "predict",
        **kwargs: Any,
    ) -> Any:
        given: Any
        if self._is_fitted_on_frames and _has_unlike_types(data):
            # A frame, as in training: a matrix would convert all columns to objects.
            given = feature_frame(select_columns(data, feature_columns), self.features)
            given = given.set_axis(list(self.estimator.feature_names_in_), axis=1)
            return self._call(method, given, num_estimator_cpus, kwargs)
        given = select_matrix(data, self.features, feature_columns)
        if self._is_fitted_on_frames:
            # Without names scikit-learn warns for every batch.
            import pandas

            given = pandas.DataFrame(given, columns=list(self.estimator.feature_names_in_))
        return self._call(method, given, num_estimator_cpus, kwargs)

    def _predict_pandas(
        self,
        data: Any,
        feature_columns: Sequence[str] | Sequence[int] | None = None,
        num_estimator_cpus: int | None = None,
        method: str = "predict",
        **kwargs: Any,
    ) -> Any:
        frame = select_frame(data, self.features, feature_columns)
        given = frame if self._is_fitted_on_frames else frame.to_numpy()
        return self._call(method, given, num_estimator_cpus, kwargs)

    def _call(self, method: str, data: Any, num_cpus: int | None, kwargs: dict[str, Any]) -> Any:
        if num_cpus is not None and "n_jobs" in self.estimator.get_params(deep=False):
            self.estimator.set_params(n_jobs=num_cpus)
        return getattr(self.estimator, method)(data, **kwargs)


def _has_unlike_types(data: Any) -> bool:
    return isinstance(data, Mapping) and len({values.dtype for values in data.values()}) > 1
