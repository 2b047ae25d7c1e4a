"""`SimpleImputer`: replacement of missing values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import numpy as np

from hpctrain.checks import check_choice, shown
from hpctrain.data.types import EXACT
from hpctrain.errors import ConfigError
from hpctrain.missing import is_missing
from hpctrain.preprocessors.batches import Array, NumpyBatch, Rows
from hpctrain.preprocessors.categories import most_frequent
from hpctrain.preprocessors.columns import _PerColumn
from hpctrain.preprocessors.preprocessor import FitStatus, per_row
from hpctrain.preprocessors.statistics import Counts, Moments, collect, in_shape, infinite_values
from hpctrain.world import Communicator


class SimpleImputer(_PerColumn):
    """Replaces missing values: NaN, None, NaT.

    Infinite values raise an error when it is fitted.

    Parameters
    ----------
    columns
        Columns with missing values.
    strategy
        Replacement: ``"mean"`` of a column of numbers; ``"most_frequent"`` value, the smallest of
        several; or ``"constant"``.
    fill_value
        The constant.
    output_columns
        Names of the result columns; by default the columns are replaced.
    """

    def __init__(
        self,
        columns: list[str],
        strategy: str = "mean",
        fill_value: str | float | None = None,
        *,
        output_columns: list[str] | None = None,
    ) -> None:
        check_choice("strategy", strategy, ("mean", "most_frequent", "constant"))
        if (strategy == "constant") != (fill_value is not None):
            raise ConfigError(
                f"strategy={strategy!r} and fill_value={fill_value!r} do not fit together. Give "
                f"fill_value with strategy='constant', and only then."
            )
        self._take_columns(columns, output_columns)
        self.strategy = strategy
        self.fill_value = fill_value

    def fit_status(self) -> FitStatus:
        """Return whether the preprocessor can be applied. Not collective."""
        return FitStatus.NOT_FITTABLE if self.strategy == "constant" else super().fit_status()

    def _fit_columns(self, rows: Rows, comm: Communicator) -> dict[str, Any]:
        stats: dict[str, Any] = {}
        if self.strategy == "mean":
            for column, moments in collect(
                rows, dict.fromkeys(self.columns, Moments), comm
            ).items():
                if moments.shape is None or not moments.count.all():
                    raise _no_value(column)
                stats[f"mean({column})"] = per_row(moments.mean, moments.shape)
            return stats
        for column, counts in collect(rows, dict.fromkeys(self.columns, Counts), comm).items():
            if not counts.counts:
                raise _no_value(column)
            if not {math.inf, -math.inf}.isdisjoint(counts.counts):
                raise ConfigError(f"column {column!r}: {infinite_values()}")
            (stats[f"most_frequent({column})"],) = most_frequent(counts.counts, 1)
        return stats

    def _transform_columns(self, columns: NumpyBatch) -> Mapping[str, Any]:
        return {
            output: _filled(name, columns[name], self._fill_of(name))
            for name, output in self._names()
        }

    def _fill_of(self, column: str) -> Any:
        if self.strategy == "constant":
            return self.fill_value
        return self._stats[f"{self.strategy}({column})"]


def _filled(column: str, values: Array, fill: Any) -> Array:
    filled: Array
    if np.ndim(fill):
        values = in_shape(values, np.shape(fill))
        if values.shape[1:] != np.shape(fill):
            raise ConfigError(
                f"column {column!r} has rows of shape {values.shape[1:]}, and the replacement is "
                f"of shape {np.shape(fill)}: {shown(fill)}. Give a single value, or one of that "
                f"shape."
            )
    if values.dtype.kind in "fcmM":
        is_none = np.isnan(values) if values.dtype.kind in "fc" else np.isnat(values)
        filled = np.where(is_none, _in_type(column, values.dtype, fill), values)
        return filled
    if values.dtype != object:
        return values
    filled = values.copy()
    filled[np.array([is_missing(value) for value in values], dtype=bool)] = fill
    return _as_numbers(filled)


def _as_numbers(values: Array) -> Array:
    """Return objects that are all numbers as numbers: integers stay exact, bools stay bools."""
    kinds = {bool if isinstance(v, (bool, np.bool_)) else type(v) for v in values.flat}
    if kinds == {bool}:
        return values.astype(np.bool_)
    if kinds and all(issubclass(kind, (int, np.integer)) for kind in kinds - {bool}):
        made = np.array(values.tolist())
        return made if made.dtype.kind in "iu" else values
    reals = (int, float, np.integer, np.floating, Decimal)
    are_reals = kinds and all(issubclass(kind, reals) for kind in kinds)
    if are_reals and all(map(_is_float, values.flat)):
        return values.astype(np.float64)
    return values


def _is_float(value: Any) -> bool:
    """Return whether float64 holds a number; a fraction may be rounded, an integer may not."""
    if not isinstance(value, (int, np.integer)):
        return True
    exact = int(value)
    return abs(exact) <= EXACT or (abs(exact) < 2**1023 and int(float(exact)) == exact)


def _in_type(column: str, dtype: np.dtype[Any], fill: Any) -> Array:
    try:
        with np.errstate(over="ignore"):
            made = np.asarray(np.asarray(fill), dtype)
        # Strings have no isfinite(), and values too large for the type become infinite.
        if dtype.kind in "mM" or np.array_equal(np.isfinite(made), np.isfinite(fill)):
            return made
    except (TypeError, ValueError, OverflowError):
        pass
    raise ConfigError(
        f"column {column!r} has type {dtype}, which cannot hold the replacement {shown(fill)}. "
        f"Give another fill_value."
    )


def _no_value(column: str) -> ConfigError:
    return ConfigError(
        f"column {column!r} has no value in any row of any rank, so there is no replacement for "
        f"missing values. Use strategy='constant', or leave the column out."
    )
