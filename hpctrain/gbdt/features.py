"""`Features`: the columns that a model uses, in training and in prediction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import Any

import numpy as np

from hpctrain.data.batch import flat_rows
from hpctrain.errors import CheckpointError, ConfigError
from hpctrain.missing import is_missing
from hpctrain.predict.categories import encode, is_categorical, plain
from hpctrain.predict.feature_columns import array_columns
from hpctrain.predict.features import FEATURES_NAME, ModelFeatures

Array = np.ndarray[Any, Any]

_FEATURE_ADVICE = "Name it in categorical_columns, encode it with a preprocessor, or leave it out."


@dataclass(frozen=True, kw_only=True)
class Features:
    """Names of features, in the model's order, and the conversion of batches to their matrix.

    A column of shape ``[rows, k]`` is k features: ``name_0`` to ``name_{k-1}``.
    """

    names: tuple[str, ...]
    label: str | None = None
    """Column that the model predicts."""
    categories: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Values of categorical columns, by name. A value's index is its code; others are missing."""
    missing: float | None = None
    """Value that stands for a missing one, beside NaN."""

    def matrix(self, batch: Any, *, dtype: Any = np.float32, out: Array | None = None) -> Array:
        """Return a batch as a matrix, a column for each feature; NaN is missing. Not collective.

        Parameters
        ----------
        batch
            A data frame, or a mapping of names to arrays. Columns other than features are ignored.
        dtype
            Type of the matrix.
        out
            The matrix to fill, of shape ``(rows, features)``. None makes a new one.

        Raises
        ------
        ConfigError
            If a feature is missing, or not a number.
        """
        columns = columns_of(batch)
        matrix = out
        if matrix is None:
            matrix = np.empty((num_rows_of(columns), len(self.names)), dtype=dtype)
        places = {name: index for index, name in enumerate(self.names)}
        filled = 0
        for name, values in columns.items():
            parts = feature_names({name: values})
            chosen = [places[part] for part in parts if part in places]
            filled += len(chosen)
            if not chosen:
                continue
            if name in self.categories:
                matrix[:, chosen[0]] = encode(values, self.categories[name])
                continue
            flat = flat_rows(as_numbers(name, values))
            if len(chosen) < len(parts):
                flat = flat[:, [number for number, part in enumerate(parts) if part in places]]
            in_order = chosen == list(range(chosen[0], chosen[0] + len(chosen)))
            # Copying to a slice is much faster than to a list of columns.
            matrix[:, slice(chosen[0], chosen[-1] + 1) if in_order else chosen] = flat
        if filled != len(self.names):
            there = set(feature_names(columns))
            missing = [name for name in self.names if name not in there]
            raise ConfigError(
                f"features {missing[:10]} are missing: the model has {len(self.names)} features, "
                f"but this batch has the columns {sorted(columns)[:30]}. Give all columns that the "
                f"model was trained on."
            )
        if self.missing is not None:
            matrix[matrix == self.missing] = np.nan
        return matrix

    def write(
        self,
        directory: str | PathLike[str],
        *,
        framework: str,
        digests: Mapping[str, str] | None = None,
    ) -> None:
        """Write ``features.json`` beside a model. Not collective.

        Parameters
        ----------
        directory
            Directory of the model.
        framework
            Framework of the model.
        digests
            Digest of the model's file, by its name.
        """
        ModelFeatures(
            framework=framework,
            features=self.names,
            label=self.label,
            categories=self.categories,
            missing=self.missing,
            digests=digests or {},
        ).write(directory)

    @classmethod
    def read(cls, directory: str | PathLike[str], *, framework: str) -> Features:
        """Return the features that `write` wrote. Not collective.

        Raises
        ------
        CheckpointError
            If there is no such file, or the checkpoint is of another framework.
        """
        known = ModelFeatures.read(directory)
        if known is None:
            raise CheckpointError(
                f"{directory} has no {FEATURES_NAME}, so it is not a checkpoint of {framework}. "
                f"Give another directory."
            )
        if known.framework != framework:
            raise CheckpointError(
                f"{directory} is a checkpoint of {known.framework}, not of {framework}. Open it "
                f"with hpctrain.{known.framework}."
            )
        return cls(
            names=known.features or (),
            label=known.label,
            categories=known.categories,
            missing=known.missing,
        )


def columns_of(batch: Any) -> dict[str, Any]:
    """Return a batch's columns by name: arrays, or pandas series. Not collective.

    A series whose cells are arrays becomes an array of more than one dimension.
    """
    if hasattr(batch, "iloc"):
        series = {str(name): batch[name] for name in batch.columns}
        return {**series, **array_columns(batch)}
    return {str(name): values for name, values in batch.items()}


def num_rows_of(columns: Mapping[str, Any]) -> int:
    """Return the number of rows. Not collective."""
    return len(next(iter(columns.values()), ()))


def width_of(values: Any) -> int | None:
    """Return the number of features of a column of arrays, None for a plain column."""
    shape = getattr(values, "shape", (len(values),))
    return None if len(shape) == 1 else int(np.prod(shape[1:]))


def feature_names(columns: Mapping[str, Any], *, without: Sequence[str] = ()) -> list[str]:
    """Return the names of the features in columns. Not collective."""
    names: list[str] = []
    for name, values in columns.items():
        if name in without:
            continue
        width = width_of(values)
        names += [name] if width is None else [f"{name}_{part}" for part in range(width)]
    return names


def as_numbers(name: str, values: Any, *, advice: str = _FEATURE_ADVICE) -> Array:
    """Return a column as numbers; texts of digits are none. Not collective.

    Parameters
    ----------
    advice
        What to do about a column of something else, for the error.

    Raises
    ------
    ConfigError
        If it holds something else.
    """
    array: Array = values.to_numpy() if hasattr(values, "to_numpy") else np.asarray(values)
    if array.dtype.kind in "biuf":
        return array
    try:
        # pandas' masked integers become objects, with pandas.NA for missing ones.
        is_masked = hasattr(values, "to_numpy") and hasattr(values.dtype, "na_value")
        if is_masked and (values.dtype.kind in "biuf" or not _has_texts(array)):
            masked: Array = values.to_numpy(dtype=np.float64, na_value=np.nan)
            return masked
        if array.dtype.kind == "O" and not _has_texts(array):
            numbers: Array = array.astype(np.float64)
            return numbers
    except (TypeError, ValueError):
        pass
    first = plain(array.flat[0]) if array.size else None
    raise ConfigError(
        f"column {name!r} holds {array.dtype}, not numbers (its first value is {first!r}). {advice}"
    )


def _has_texts(array: Array) -> bool:
    return any(isinstance(value, str | bytes) for value in array.flat)


def distinct(values: Any) -> list[Any]:
    """Return the distinct values of a column, without missing ones. Not collective."""
    if is_categorical(values):
        return [plain(value) for value in values.cat.categories]
    array = np.asarray(values)
    if array.dtype.kind in "biu":
        return [plain(value) for value in np.unique(array)]
    if array.dtype.kind in "mM":
        # As integers they would depend on the unit, which may be another one in prediction.
        return list(np.unique(array))
    return [plain(value) for value in dict.fromkeys(array.tolist()) if not is_missing(value)]


def sorted_values(values: Iterable[Any]) -> tuple[Any, ...]:
    """Return values in an order that is the same on every rank. Not collective."""
    return tuple(sorted(set(values), key=lambda value: (type(value).__name__, value)))
