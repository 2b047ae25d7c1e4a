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
        rows = np.concatenate(parts, axis=1, dtype=np.float64)
        with np.errstate(over="ignore"):
            norms = self._norms(rows)
        norms[norms == 0] = 1.0
        # A norm beyond float64 is one of the row divided by its largest value.
        if (is_large := np.isinf(norms)).any():
            largest = np.ones(len(rows))
            largest[is_large] = self._largest(rows[is_large])
            parts = [part / largest[:, None] for part in parts]
            norms[is_large] = self._norms(rows[is_large] / largest[is_large, None])
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
            norms = self._largest(rows)
        return norms

    def _largest(self, rows: Array) -> Array:
        largest: Array = np.abs(rows).max(axis=1, initial=0.0)
        return largest
