"""Conversion of batches to tensors, and of a model's output to columns, for any framework."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hpctrain.errors import ConfigError
from hpctrain.predict.batches import PREDICTIONS
from hpctrain.predict.feature_columns import check_width, feature_matrix


def to_inputs(
    batch: Any,
    *,
    features: Sequence[str] | None,
    dtype: Any,
    to_tensor: Callable[[np.ndarray[Any, Any], Any], Any],
) -> Any:
    """Return a batch as one tensor, or as a dict of tensors.

    Not collective. The result is one tensor for a bare array, for a single column, and for the
    columns of `features` side by side.

    Parameters
    ----------
    batch
        A bare array, or a dict of arrays.
    features
        Names of the model's inputs, in order; None if the checkpoint has none.
    dtype
        Type of the tensors, or a mapping of columns to types; None leaves it to `to_tensor`.
    to_tensor
        Converts an array to a tensor of a type.

    Raises
    ------
    ConfigError
        If the batch lacks inputs of the model.
    """
    if isinstance(batch, np.ndarray):
        check_width(batch, features)
        return to_tensor(batch, dtype)
    if features is not None:
        return to_tensor(feature_matrix(batch, features), dtype)
    types = dtype if isinstance(dtype, Mapping) else dict.fromkeys(batch, dtype)
    tensors = {name: to_tensor(values, types.get(name)) for name, values in batch.items()}
    return next(iter(tensors.values())) if len(tensors) == 1 else tensors


def from_output(
    output: Any,
    *,
    is_tensor: Callable[[Any], bool],
    to_numpy: Callable[[Any], np.ndarray[Any, Any]],
    predictor: str,
) -> dict[str, np.ndarray[Any, Any]]:
    """Return a model's output as columns.

    Not collective.

    Parameters
    ----------
    output
        A tensor, or a dict of tensors.
    is_tensor
        Returns whether a value is a tensor.
    to_numpy
        Converts a tensor to an array.
    predictor
        Name of the predictor, for the error.

    Raises
    ------
    ConfigError
        If the output is something else.
    """
    if is_tensor(output):
        return {PREDICTIONS: to_numpy(output)}
    if isinstance(output, Mapping) and all(map(is_tensor, output.values())):
        return {str(name): to_numpy(values) for name, values in output.items()}
    raise ConfigError(
        f"the model returned a {type(output).__name__}, but {predictor} accepts a tensor or a dict "
        f"of tensors. Override call_model() to convert the output."
    )
