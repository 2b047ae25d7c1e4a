"""`Normalizer`: rows of length 1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hpctrain.checks import check_choice
from hpctrain.preprocessors.batches import Array, NumpyBatch
from hpctrain.preprocessors.columns import _PerColumn
from hpctrain.preprocessors.statistics import finite_numbers


class Normalizer(_PerColumn):
    """Divides each row by its norm, over all columns; a row of zeros is unchanged.

    A row with NaN becomes NaN; infinite values raise an error.

    Parameters
    ----------
    columns
        Columns of numbers that together form a row.
    norm
        ``"l1"``: the sum of absolute values; ``"l2"``: the root of the sum of squares; ``"max"``:
        the largest absolute value.
    output_columns
        Names of the result columns; by default the columns are replaced.
    """

    _is_fittable = False

    def __init__(
        self, columns: list[str], norm: str = "l2", *, output_columns: list[str] | None = None
    ) -> None:
        check_choice("norm", norm, ("l1", "l2", "max"))
        self._take_columns(columns, output_columns)
        self.norm = norm

    def _transform_columns(self, columns: NumpyBatch) -> Mapping[str, Any]:
        parts = [finite_numbers(name, columns[name]) for name in self.columns]
        norms = self._norms(np.concatenate(parts, axis=1, dtype=np.float64))
        norms[norms == 0] = 1.0
        outputs = {}
        for (name, output), part in zip(self._names(), parts, strict=True):
            values = columns[name]
            dtype = values.dtype if values.dtype.kind == "f" else np.dtype(np.float64)
            outputs[output] = (part / norms[:, None]).astype(dtype).reshape(values.shape)
        return outputs

    def _norms(self, rows: Array) -> Array:
        if self.norm == "l1":
            norms: Array = np.abs(rows).sum(axis=1)
        elif self.norm == "l2":
            norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
            # Squares of very large or very small numbers overflow or underflow.
            for row in np.flatnonzero((norms > 1e150) | (norms < 1e-150)):
                largest = np.abs(rows[row]).max(initial=0.0)
                if 0 < largest < np.inf:
                    norms[row] = largest * np.sqrt(np.square(rows[row] / largest).sum())
        else:
            norms = np.abs(rows).max(axis=1, initial=0.0)
        return norms
