"""What models of tensors are given for a batch, and what they return, whatever the framework."""

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
    """Return a batch as one tensor, or as a dict of them.

    Not collective. It is one for a bare array, for the only column, and for the columns of
    `features`, side by side.

    Parameters
    ----------
    batch
        A bare array, or a dict of arrays.
    features
        Names of the model's inputs, in order; None if the checkpoint has none.
    dtype
        Type of the tensors, or a mapping of columns to types; None leaves it to `to_tensor`.
    to_tensor
        Makes a tensor of an array and a type.

    Raises
    ------
    ConfigError
        If the batch has not the model's inputs.
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
    """Return what a model made of a batch as columns.

    Not collective.

    Parameters
    ----------
    output
        A tensor, or a dict of tensors.
    is_tensor
        Says whether something is a tensor.
    to_numpy
        Makes an array of a tensor.
    predictor
        Whose model it is, for the error.

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
        f"the model returned a {type(output).__name__}. {predictor} understands a tensor, or a "
        f"dict of tensors; override call_model() to make one of what it returns."
    )
