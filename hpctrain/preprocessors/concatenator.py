"""`Concatenator`: one column of vectors out of several columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpctrain.errors import ConfigError
from hpctrain.preprocessors.batches import NumpyBatch, names_of
from hpctrain.preprocessors.columns import ColumnPreprocessor
from hpctrain.preprocessors.preprocessor import check_columns
from hpctrain.preprocessors.statistics import named_numbers


class Concatenator(ColumnPreprocessor):
    """Puts columns of numbers side by side into one column of vectors, and drops them.

    Parameters
    ----------
    columns
        The columns, in the order they get.
    output_column_name
        The column of vectors.
    dtype
        Of the vectors; by default one that holds all columns.
    raise_if_missing
        Whether a column that is not there is an error; else it is left out. To a trainer, and when
        a Chain is fitted, it always is.
    flatten
        Whether columns of vectors, or of arrays, are put in component by component. Without it they
        are an error.
    """

    _is_fittable = False

    def __init__(
        self,
        columns: list[str],
        output_column_name: str = "concat_out",
        dtype: Any = None,
        raise_if_missing: bool = False,
        flatten: bool = False,
    ) -> None:
        self.columns = check_columns(columns)
        self.output_column_name = output_column_name
        self.dtype = None if dtype is None else np.dtype(dtype)
        self.raise_if_missing = raise_if_missing
        self.flatten = flatten

    def get_output_columns(self) -> list[str]:
        """Return the column of vectors. Not collective."""
        return [self.output_column_name]

    def _dropped_columns(self) -> Sequence[str]:
        return self.columns

    def _columns_of(self, batch: Any) -> list[str]:
        there = names_of(batch)
        missing = [name for name in self.columns if name not in there]
        if missing and (self.raise_if_missing or len(missing) == len(self.columns)):
            raise ConfigError(
                f"Concatenator: columns {missing} are missing. There is {there}: name some of "
                f"these."
            )
        return [name for name in self.columns if name in there]

    def _transform_columns(self, columns: NumpyBatch) -> Mapping[str, Any]:
        parts = []
        for name, values in columns.items():
            if values.ndim > 1 and not self.flatten:
                raise ConfigError(
                    f"Concatenator: column {name!r} holds arrays of shape {values.shape[1:]}. Set "
                    f"flatten=True to put them in component by component."
                )
            part = named_numbers(name, values)
            if self._is_of_integers and part.dtype.kind == "f" and not np.isfinite(part).all():
                raise ConfigError(
                    f"column {name!r} holds NaN or infinite values, and dtype={self.dtype} has "
                    f"none. Put a SimpleImputer before Concatenator, or take a floating-point type."
                )
            parts.append(part)
        made = np.concatenate(parts, axis=1, dtype=self.dtype, casting="unsafe")
        return {self.output_column_name: made}

    @property
    def _is_of_integers(self) -> bool:
        return self.dtype is not None and self.dtype.kind in "iu"
