"""`PowerTransformer`: numbers made more like those of a normal distribution."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hpctrain.checks import check_choice, is_number
from hpctrain.errors import ConfigError
from hpctrain.preprocessors.batches import Array, NumpyBatch
from hpctrain.preprocessors.preprocessor import Preprocessor, check_outputs


class PowerTransformer(Preprocessor):
    """Raises values to a power, in the way of Yeo and Johnson or of Box and Cox.

    Parameters
    ----------
    columns
        Columns of numbers.
    power
        The exponent, lambda in the literature.
    method
        ``"yeo-johnson"``, for all numbers, or ``"box-cox"``, for those above 0; others become NaN.
    output_columns
        Where the results go; by default into the columns themselves.
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
            raise ConfigError(f"power={power!r}: a finite number is needed.")
        self.output_columns = check_outputs(columns, output_columns)
        self.columns = list(columns)
        self.power = power
        self.method = method

    def _transform_numpy(self, columns: NumpyBatch) -> Mapping[str, Any]:
        function = _yeo_johnson if self.method == "yeo-johnson" else _box_cox
        outputs = {}
        for name, output in self._names():
            values = columns[name]
            dtype = values.dtype if values.dtype.kind == "f" else np.dtype(np.float64)
            with np.errstate(invalid="ignore", divide="ignore"):
                outputs[output] = function(values.astype(np.float64), self.power).astype(dtype)
        return outputs


def _box_cox(values: Array, power: float) -> Array:
    positive = np.where(values > 0, values, np.nan)
    return np.log(positive) if power == 0 else (positive**power - 1) / power


def _yeo_johnson(values: Array, power: float) -> Array:
    above, below = np.maximum(values, 0.0), np.minimum(values, 0.0)
    high = np.log1p(above) if power == 0 else ((above + 1) ** power - 1) / power
    if power == 2:
        low = -np.log1p(-below)
    else:
        low = -((1 - below) ** (2 - power) - 1) / (2 - power)
    return np.where(values >= 0, high, low)
