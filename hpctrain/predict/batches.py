"""Batches in the formats that predictors take, and their output in the same format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import numpy as np

from hpctrain.data.arrow_batches import to_arrow
from hpctrain.data.batch import Batch, flat_rows, num_rows
from hpctrain.data.formats import from_any
from hpctrain.errors import ConfigError

BatchForm: TypeAlias = Literal["array", "columns", "pandas", "arrow"]

PREDICTIONS = "predictions"
"""Name of an output to which the predictor gives no name."""


class OnlyOutput(np.ndarray[Any, Any]):
    """The array of a predictor's only output, which also supports indexing by the output's name.

    For a bare array, some versions of Ray Train's predictors of estimators and trees return an
    array, others a dict.
    """

    output_name: str | None = None

    @classmethod
    def of(cls, name: str, values: np.ndarray[Any, Any]) -> OnlyOutput:
        """Return `values` with a name; nothing is copied. Not collective."""
        named = values.view(cls)
        named.output_name = name
        return named

    def __getitem__(self, key: Any) -> Any:
        """Return the plain array for its name; other keys index the array."""
        if isinstance(key, str) and key == self.output_name:
            return self.view(np.ndarray)
        return super().__getitem__(key)

    def __reduce__(self) -> Any:
        """Pickle the plain array."""
        return self.view(np.ndarray).__reduce__()


def form_of(batch: Any) -> BatchForm:
    """Return the format of a batch. Not collective.

    Raises
    ------
    ConfigError
        If predictors do not take it.
    """
    if isinstance(batch, np.ndarray):
        return "array"
    if isinstance(batch, Mapping):
        return "columns"
    if hasattr(batch, "iloc") and hasattr(batch, "columns"):
        return "pandas"
    if hasattr(batch, "schema") and hasattr(batch, "column"):
        return "arrow"
    raise ConfigError(
        f"a predictor cannot score a batch of type {type(batch).__name__}. Give a NumPy array, a "
        f"dict of arrays, a pandas DataFrame or an Arrow table."
    )


def to_columns(batch: Any) -> Any:
    """Return a batch as a dict of arrays; a bare array stays unchanged. Not collective."""
    return batch if isinstance(batch, np.ndarray) else from_any(batch)


def flatten_columns(batch: Mapping[str, Any]) -> Batch:
    """Return n-d columns as one column for each component, ``name_0``, ``name_1``, ...

    Not collective. Nothing is copied.
    """
    flat: Batch = {}
    for name, values in batch.items():
        if values.ndim == 1:
            flat[name] = values
            continue
        components = flat_rows(values)
        flat.update({f"{name}_{i}": components[:, i] for i in range(components.shape[1])})
    return flat


def name_outputs(output: Any) -> Batch:
    """Return a predictor's output as a dict of arrays. Not collective.

    Raises
    ------
    ConfigError
        If it is neither an array, nor a dict of arrays, nor a DataFrame.
    """
    if isinstance(output, np.ndarray):
        return {PREDICTIONS: output}
    try:
        return from_any(output)
    except ConfigError as error:
        raise ConfigError(
            f"the predictor returned a {type(output).__name__}. Return a NumPy array, a dict of "
            f"arrays or a pandas DataFrame, with one row for each row of the batch."
        ) from error


def in_form_of(batch: Any, output: Any) -> Any:
    """Return a predictor's output in the format of its input batch.

    Not collective. For a bare array the result is a bare array, an `OnlyOutput`, if the predictor
    returns an array or a DataFrame of one column; a dict stays a dict, as predictors of tensors
    return it. In a DataFrame an output of shape ``(rows, k)`` becomes `k` columns,
    ``predictions_0`` and so on, and rows keep their index.
    """
    form = form_of(batch)
    if form == "pandas":
        if form_of(output) == "pandas":
            return output
        import pandas

        columns = flatten_columns(name_outputs(output))
        index = batch.index if num_rows(columns) == len(batch) else None
        return pandas.DataFrame(columns, index=index)
    columns = name_outputs(output)
    if form == "array":
        names_it = form_of(output) == "columns"
        if names_it or len(columns) > 1:
            return columns
        return OnlyOutput.of(*next(iter(columns.items())))
    return columns if form == "columns" else to_arrow(columns)
