"""Scalers: shift and divide columns of numbers by statistics of all rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any, ClassVar

import numpy as np

from hpctrain.checks import is_number
from hpctrain.errors import ConfigError
from hpctrain.preprocessors.batches import Array, NumpyBatch, Rows
from hpctrain.preprocessors.columns import _PerColumn
from hpctrain.preprocessors.kernels import shifted_and_scaled
from hpctrain.preprocessors.preprocessor import no_value, per_row
from hpctrain.preprocessors.quantiles import quantiles_of
from hpctrain.preprocessors.statistics import (
    Extremes,
    Moments,
    collect,
    in_shape,
    infinite_values,
    named_numbers,
)
from hpctrain.world import Communicator

# Rounding error of the difference of equal numbers, relative to them.
_ROUNDING = 10 * float(np.finfo(np.float64).eps)


class _Scaler(_PerColumn):
    _collected: ClassVar[type[Moments] | type[Extremes]]

    def __init__(self, columns: list[str], output_columns: list[str] | None = None) -> None:
        self._take_columns(columns, output_columns)

    def _fit_columns(self, rows: Rows, comm: Communicator) -> dict[str, Any]:
        stats: dict[str, Any] = {}
        makers: dict[str, Callable[[], Moments | Extremes]]
        makers = dict.fromkeys(self.columns, self._collected)
        for column, found in collect(rows, makers, comm).items():
            shape = _shape_of(column, found)
            for name, values in self._stats_of(column, found).items():
                stats[f"{name}({column})"] = per_row(values, shape)
        return stats

    def _stats_of(self, column: str, found: Any) -> dict[str, Array]:
        """Return the statistics of a column by their names, from what was collected."""
        raise NotImplementedError

    def _transform_columns(self, columns: NumpyBatch) -> Mapping[str, Any]:
        return {
            output: _scaled(name, columns[name], *self._shift_and_scale(name))
            for name, output in self._names()
        }

    def _shift_and_scale(self, column: str) -> tuple[Any, Any]:
        """Return the offset that is subtracted from a column, and its divisor."""
        raise NotImplementedError


class StandardScaler(_Scaler):
    """Shifts columns to mean 0, and scales them to standard deviation 1.

    NaN is ignored and stays NaN; infinite values raise an error. A column whose values are all the
    same, up to relative rounding errors of 2e-15, is only shifted. The deviation is that of a
    population (``ddof=0``).

    Parameters
    ----------
    columns
        Columns of numbers. The components of a column of arrays are scaled one by one.
    output_columns
        Names of the result columns; by default the columns are replaced.

    Examples
    --------
    >>> scaler = StandardScaler(["x"]).fit({"x": np.array([1.0, 3.0])})
    >>> scaler.stats_
    {'mean(x)': 2.0, 'std(x)': 1.0}
    >>> scaler.transform_batch({"x": np.array([5.0])})
    {'x': array([3.])}
    """

    _collected = Moments

    def __init__(self, columns: list[str], output_columns: list[str] | None = None) -> None:
        super().__init__(columns, output_columns)

    def _stats_of(self, column: str, found: Any) -> dict[str, Array]:
        std = np.sqrt(found.variance)
        return {
            "mean": np.where(found.count, found.mean, np.nan),
            "std": np.where(std <= _ROUNDING * np.abs(found.mean), 0.0, std),
        }

    def _shift_and_scale(self, column: str) -> tuple[Any, Any]:
        std = self._stats[f"std({column})"]
        return self._stats[f"mean({column})"], np.where(np.equal(std, 0), 1.0, std)


class MinMaxScaler(_Scaler):
    """Scales columns to the range from 0 to 1.

    NaN is ignored and stays NaN; infinite values raise an error. A column whose values are all the
    same, up to rounding errors, becomes 0.

    Parameters
    ----------
    columns
        Columns of numbers. The components of a column of arrays are scaled one by one.
    output_columns
        Names of the result columns; by default the columns are replaced.
    """

    _collected = Extremes

    def __init__(self, columns: list[str], output_columns: list[str] | None = None) -> None:
        super().__init__(columns, output_columns)

    def _stats_of(self, column: str, found: Any) -> dict[str, Array]:
        _check_range(column, found.minimum, found.maximum)
        return {"min": found.minimum, "max": found.maximum}

    def _shift_and_scale(self, column: str) -> tuple[Any, Any]:
        low, high = self._stats[f"min({column})"], self._stats[f"max({column})"]
        return low, _not_zero(np.subtract(high, low), low, high)


class MaxAbsScaler(_Scaler):
    """Divides columns by their largest absolute value.

    NaN is ignored and stays NaN; infinite values raise an error. A column of zeros is unchanged.

    Parameters
    ----------
    columns
        Columns of numbers. The components of a column of arrays are scaled one by one.
    output_columns
        Names of the result columns; by default the columns are replaced.
    """

    _collected = Extremes

    def __init__(self, columns: list[str], output_columns: list[str] | None = None) -> None:
        super().__init__(columns, output_columns)

    def _stats_of(self, column: str, found: Any) -> dict[str, Array]:
        return {"abs_max": np.maximum(np.abs(found.minimum), np.abs(found.maximum))}

    def _shift_and_scale(self, column: str) -> tuple[Any, Any]:
        largest = self._stats[f"abs_max({column})"]
        return np.zeros_like(largest), _not_zero(largest, largest)


class RobustScaler(_Scaler):
    """Shifts columns to median 0, and divides them by the distance between two quantiles.

    Outliers do not affect the scale. The quantiles are exact for any number of rows and ranks; the
    fit reads the data two to five times. NaN is ignored and stays NaN; infinite values raise an
    error.

    Parameters
    ----------
    columns
        Columns of numbers. The components of a column of arrays are scaled one by one.
    quantile_range
        The two quantiles, between 0 and 1.
    output_columns
        Names of the result columns; by default the columns are replaced.
    quantile_precision
        Accepted, without effect: in Ray Train it bounds the error of the quantiles.
    """

    def __init__(
        self,
        columns: list[str],
        quantile_range: tuple[float, float] = (0.25, 0.75),
        output_columns: list[str] | None = None,
        quantile_precision: int = 800,
    ) -> None:
        super().__init__(columns, output_columns)
        given: object = quantile_range
        is_pair = isinstance(given, tuple | list) and len(given) == 2 and all(map(is_number, given))
        low, high = quantile_range if is_pair else (1, 0)
        if not 0 <= low < high <= 1:
            raise ConfigError(
                f"quantile_range={quantile_range!r} is not two ascending numbers from 0 to 1. Give "
                f"two, such as (0.25, 0.75)."
            )
        self.quantile_range = (low, high)
        self.quantile_precision = quantile_precision

    def _fit_columns(self, rows: Rows, comm: Communicator) -> dict[str, Any]:
        low, high = self.quantile_range
        found = quantiles_of(rows, self.columns, (low, 0.5, high), comm)
        stats: dict[str, Any] = {}
        for column, quantiles in found.items():
            if np.isnan(quantiles).all():
                raise no_value(column)
            _check_range(column, quantiles[0], quantiles[2])
            for name, value in zip(
                ("low_quantile", "median", "high_quantile"), quantiles, strict=True
            ):
                stats[f"{name}({column})"] = per_row(np.atleast_1d(value), value.shape)
        return stats

    def _shift_and_scale(self, column: str) -> tuple[Any, Any]:
        low, high = self._stats[f"low_quantile({column})"], self._stats[f"high_quantile({column})"]
        return self._stats[f"median({column})"], _not_zero(np.subtract(high, low), low, high)


def _scaled(column: str, values: Array, shift: Any, scale: Any) -> Array:
    shape = np.shape(shift)
    values = in_shape(values, shape)
    if values.shape[1:] != shape:
        raise ConfigError(
            f"column {column!r} has rows of shape {values.shape[1:]}, but the scaler was fitted on "
            f"rows of shape {shape}. Give the columns that it was fitted on."
        )
    # Computed in float64 for every column type: the mean may be far from 0.
    width = int(np.prod(shape, dtype=np.int64))
    by_column = [np.broadcast_to(part, shape).reshape(width) for part in (shift, scale)]
    numbers = named_numbers(column, values)
    scaled: Array = shifted_and_scaled(numbers, *by_column).reshape(values.shape)
    return scaled


def _not_zero(scale: Any, *of: Any) -> Any:
    """Return scales, with 1 in place of those that are only rounding errors of their numbers.

    scikit-learn does the same, except if all numbers are small.
    """
    largest = np.minimum(1.0, reduce(np.maximum, map(np.abs, of)))
    return np.where(np.less_equal(scale, _ROUNDING * largest), 1.0, scale)


def _check_range(column: str, low: Array, high: Array) -> None:
    with np.errstate(over="ignore"):
        if np.isinf(np.subtract(high, low)).any():
            raise ConfigError(f"column {column!r}: {infinite_values()}")


def _shape_of(column: str, found: Moments | Extremes) -> tuple[int, ...]:
    known = found.count > 0 if isinstance(found, Moments) else ~np.isnan(found.minimum)
    if found.shape is None or not known.any():
        raise no_value(column)
    return found.shape
