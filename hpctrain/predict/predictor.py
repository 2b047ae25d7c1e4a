"""`Predictor`: a model, loaded from a checkpoint, that scores batches."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from hpctrain.checkpoint import Checkpoint, refuse_missing
from hpctrain.checks import NamedArguments
from hpctrain.data.batch import num_rows
from hpctrain.data.formats import from_any
from hpctrain.data.pandas_batches import to_pandas
from hpctrain.errors import ConfigError, HpctrainError
from hpctrain.predict.batches import form_of, in_form_of, name_outputs, to_columns
from hpctrain.predict.features import ModelFeatures

if TYPE_CHECKING:
    import pandas


class PredictorNotSerializableException(HpctrainError, RuntimeError):  # noqa: N818  # Ray Train's name
    """A predictor cannot be pickled: send its class and the checkpoint instead."""


class Predictor(NamedArguments, abc.ABC):
    """Scores batches of rows with a model that is loaded once.

    A class of your own implements `from_checkpoint` and one of ``_predict_numpy(batch, **kwargs)``
    and ``_predict_pandas(frame, **kwargs)``. The first takes a dict of arrays, or a bare array if
    `predict` got one; both return an array, a dict of arrays or a DataFrame with one row for each
    row of the batch.

    Parameters
    ----------
    preprocessor
        Preprocessor of batches; usually the one in the checkpoint.
    """

    framework: ClassVar[str | None] = None
    """Framework in ``features.json`` of its checkpoints; None if it takes any checkpoint."""
    model_files: ClassVar[tuple[str, ...]] = ()
    """Names that the model's file can have in a checkpoint."""

    needless_packages: ClassVar[tuple[str, ...]] = ()
    """Optional packages that its framework imports, but scoring arrays does not need."""

    features: tuple[str, ...] | None = None
    """Names of the model's features, in order, if the checkpoint has them."""
    label: str | None = None
    """Column that the model predicts, which may be in a batch, if the checkpoint has it."""

    def __init__(self, preprocessor: Any = None) -> None:
        self._preprocessor = preprocessor

    @classmethod
    @abc.abstractmethod
    def from_checkpoint(cls, checkpoint: Checkpoint, **kwargs: Any) -> Predictor:
        """Return a predictor with the model of a checkpoint. Not collective."""

    @classmethod
    def from_pandas_udf(
        cls, pandas_udf: Callable[[pandas.DataFrame], pandas.DataFrame]
    ) -> Predictor:
        """Return a predictor that calls a function of a DataFrame. Not collective."""
        return FunctionPredictor(pandas_udf)

    @classmethod
    def check_checkpoint(cls, checkpoint: Checkpoint) -> ModelFeatures | None:
        """Return a checkpoint's description of its model, after checking that this class loads it.

        Not collective. It loads neither the model nor its framework.

        Raises
        ------
        ConfigError
            If the checkpoint is of another framework, or has no model that this class loads.
        """
        refuse_missing(checkpoint)
        features = ModelFeatures.read(checkpoint.path)
        if cls.framework is None:
            return features
        if features is not None and features.framework != cls.framework:
            raise ConfigError(
                f"{checkpoint.path} holds a model of {features.framework}, but {cls.__name__} "
                f"loads models of {cls.framework}. Use the predictor of {features.framework}."
            )
        if cls.model_files and cls._find_model(checkpoint) is None:
            there = sorted(p.name for p in checkpoint.path.iterdir() if p.name[0] != ".")
            raise ConfigError(
                f"{checkpoint.path} has no model that {cls.__name__} loads: none of "
                f"{', '.join(cls.model_files)}. It has {', '.join(there) or 'no files'}. Give "
                f"another checkpoint, or the predictor that reads this one."
            )
        return features

    def _take_names(self, stored: ModelFeatures | None) -> None:
        """Take the names of features and label that a checkpoint has."""
        if stored is None:
            return
        self.label = stored.label
        # An estimator may know its features itself.
        if stored.features is not None:
            self.features = stored.features

    @classmethod
    def import_framework(cls) -> Any:
        """Import and return the framework that loads a model, if any. Not collective."""
        return None

    @classmethod
    def preferred_batch_format(cls) -> Literal["numpy", "pandas"]:
        """Return the format of batches that is cheapest for this class. Not collective."""
        numpy_hook = cls._predict_numpy is not Predictor._predict_numpy
        return "numpy" if numpy_hook else "pandas"

    def get_preprocessor(self) -> Any:
        """Return the preprocessor, or None. Not collective."""
        return self._preprocessor

    def set_preprocessor(self, preprocessor: Any) -> None:
        """Replace the preprocessor; None leaves batches unchanged. Not collective."""
        self._preprocessor = preprocessor

    def predict(self, data: Any, **kwargs: Any) -> Any:
        """Return the predictions for a batch, in the format of the batch.

        Not collective.

        Parameters
        ----------
        data
            A NumPy array, a dict of arrays, a pandas DataFrame or a pyarrow Table. For a bare
            array, predictors of tensors (torch, TensorFlow, JAX) return a dict,
            ``{"predictions": array}`` if the model does not name its output; predictors of trees
            and estimators return an array, which ``["predictions"]`` returns too. With a class of
            your own, an array that ``_predict_numpy`` returns stays an array, and a dict a dict.
        **kwargs
            Arguments of the hook of the class.

        Raises
        ------
        ConfigError
            If the batch has another format, or lacks features of the model.
        """
        form_of(data)
        if not hasattr(self, "_preprocessor"):
            raise ConfigError(
                f"the constructor of {type(self).__name__} does not call that of Predictor. Call "
                f"super().__init__(preprocessor) in it."
            )
        return in_form_of(data, self._score(self._preprocess(data), **kwargs))

    def _preprocess(self, batch: Any) -> Any:
        if self._preprocessor is None:
            return batch
        if form_of(batch) == "pandas" and not len(batch):
            # In a frame vectors are objects, so an empty frame has lost their length.
            batch = from_any(batch)
        return self._preprocessor.transform_batch(batch)

    def _without_label(self, batch: Any) -> Any:
        """Return a batch without the column that the model predicts."""
        label = self.label
        if label is None or label in (self.features or ()) or form_of(batch) == "array":
            return batch
        if form_of(batch) == "columns":
            return {name: values for name, values in batch.items() if name != label}
        if form_of(batch) == "arrow":
            return batch.drop_columns(label) if label in batch.column_names else batch
        return batch.drop(columns=label) if label in batch.columns else batch

    def _made_up_row(self) -> np.ndarray[Any, Any] | None:
        """Return a row to score in place of an empty batch, for libraries that refuse one."""
        return None

    def _score(self, batch: Any, **kwargs: Any) -> Any:
        """Return the result of the hook that suits a batch."""
        rows = num_rows(batch) if isinstance(batch, Mapping) else len(batch)
        if rows == 0 and (row := self._made_up_row()) is not None:
            kwargs.pop("feature_columns", None)
            of_one = self._predict_numpy(row, **kwargs)
            if isinstance(of_one, np.ndarray):
                return of_one[:0]
            return {name: values[:0] for name, values in name_outputs(of_one).items()}
        if kwargs.get("feature_columns") is None:
            batch = self._without_label(batch)
        cls = type(self)
        takes_numpy = cls._predict_numpy is not Predictor._predict_numpy
        takes_pandas = cls._predict_pandas is not Predictor._predict_pandas
        if takes_pandas and (not takes_numpy or form_of(batch) == "pandas"):
            frame = batch if form_of(batch) == "pandas" else to_pandas(from_any(batch))
            output = self._predict_pandas(frame, **kwargs)
        elif takes_numpy:
            output = self._predict_numpy(to_columns(batch), **kwargs)
        else:
            raise ConfigError(
                f"{cls.__name__} defines no prediction. Define _predict_numpy or _predict_pandas."
            )
        for name, values in name_outputs(output).items():
            if values.ndim == 0:
                raise ConfigError(
                    f"{cls.__name__} returned a single value as {name!r} for {rows} rows. Return "
                    f"an array with one row for each."
                )
        return output

    def _predict_numpy(self, data: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def _predict_pandas(self, data: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    @classmethod
    def _find_model(cls, checkpoint: Checkpoint) -> Path | None:
        paths = [checkpoint.path / name for name in cls.model_files]
        return next((path for path in paths if path.exists()), None)

    def __repr__(self) -> str:
        """Return the class, and the preprocessor if there is one."""
        # A subclass may not call the constructor.
        preprocessor = getattr(self, "_preprocessor", None)
        shown = "" if preprocessor is None else f"preprocessor={preprocessor!r}"
        return f"{type(self).__name__}({shown})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Raise: a model is loaded where it is used, never pickled."""
        raise PredictorNotSerializableException(
            f"a {type(self).__name__} cannot be pickled. Send the checkpoint and the class, and "
            f"call from_checkpoint() where the model is used."
        )


class FunctionPredictor(Predictor):
    """Calls a function of a DataFrame."""

    def __init__(self, function: Callable[..., Any], preprocessor: Any = None) -> None:
        super().__init__(preprocessor)
        self._function = function

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint, **kwargs: Any) -> FunctionPredictor:
        """Return the predictor; the checkpoint is not read. Not collective."""
        return cls(**kwargs)

    def _predict_pandas(self, data: Any, **kwargs: Any) -> Any:
        return self._function(data, **kwargs)
