"""`PowerTransformer`: makes numbers closer to a normal distribution."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hpctrain.checks import check_choice, is_number
from hpctrain.errors import ConfigError
from hpctrain.preprocessors.batches import Array, NumpyBatch
from hpctrain.preprocessors.columns import _PerColumn
from hpctrain.preprocessors.statistics import finite_numbers

_NO_POWER = 1e-19


class PowerTransformer(_PerColumn):
    """Applies the power transform of Yeo and Johnson, or of Box and Cox.

    NaN stays NaN; infinite values raise an error.

    Parameters
    ----------
    columns
        Columns of numbers.
    power
        The exponent, lambda in the literature.
    method
        ``"yeo-johnson"``, for all numbers, or ``"box-cox"``, for those above 0; others become NaN.
    output_columns
        Names of the result columns; by default the columns are replaced.
    """

    _is_fittable = False

    def __init__(
        self,
        columns: list[str],
        power: float,
        method: str = "yeo-johnson",
        *,
        output_columns: list[str] | None = None,
    ) -> None:
        check_choice("method", method, ("yeo-johnson", "box-cox"))
        if not is_number(power):
            raise ConfigError(f"power={power!r} is not a finite number. Give one, such as 0.5.")
        self._take_columns(columns, output_columns)
        self.power = power
        self.method = method

    def _transform_columns(self, columns: NumpyBatch) -> Mapping[str, Any]:
        function = _yeo_johnson if self.method == "yeo-johnson" else _box_cox
        outputs = {}
        for name, output in self._names():
            values = columns[name]
            dtype = values.dtype if values.dtype.kind == "f" else np.dtype(np.float64)
            numbers = finite_numbers(name, values).astype(np.float64)
            with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
                made = function(numbers, self.power).astype(dtype)
            outputs[output] = made.reshape(values.shape)
        return outputs


def _box_cox(values: Array, power: float) -> Array:
    return _power(np.log(np.where(values > 0, values, np.nan)), power)


def _yeo_johnson(values: Array, power: float) -> Array:
    is_high = values >= 0
    logarithms = np.log1p(np.abs(values))
    return np.where(is_high, _power(logarithms, power), -_power(logarithms, 2 - power))


def _power(logarithms: Array, power: float) -> Array:
    """Return ``(x**power - 1) / power`` for the logarithms of x, and its limit at 0.

    As in SciPy: for a small power, ``x**power`` is so near 1 that the difference loses digits.
    """
    # A smaller power changes no digit, and its inverse may be infinite.
    made: Array = logarithms if abs(power) < _NO_POWER else np.expm1(power * logarithms) / power
    return made
