"""`Concatenator`: one column of vectors from several columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpctrain.checks import shown
from hpctrain.data.arguments import flag, number_type, one_name
from hpctrain.errors import ConfigError
from hpctrain.preprocessors.batches import Array, NumpyBatch, names_of
from hpctrain.preprocessors.columns import ColumnPreprocessor
from hpctrain.preprocessors.preprocessor import check_columns
from hpctrain.preprocessors.statistics import named_numbers


class Concatenator(ColumnPreprocessor):
    """Puts columns of numbers side by side into one column of vectors, and drops them.

    Parameters
    ----------
    columns
        The columns, in the order of the vector; by default all columns of a batch, in its order.
    output_column_name
        Name of the column of vectors.
    dtype
        Type of the vectors; by default NumPy's common type of the columns: beside a column of
        float64 integers beyond 2**53 are rounded.
    raise_if_missing
        Whether a missing column is an error; else it is left out. For a trainer, and when a Chain
        is fitted, it is always an error.
    flatten
        Whether to add columns of vectors or arrays component by component. Without it they are an
        error.
    include
        In place of `columns`: the columns, in the order of the batch.
    exclude
        Columns that are left as they are, of all or of `include`.
    """

    _is_fittable = False

    def __init__(
        self,
        columns: list[str] | None = None,
        output_column_name: str = "concat_out",
        dtype: Any = None,
        raise_if_missing: bool = False,
        flatten: bool = False,
        *,
        include: list[str] | None = None,
        exclude: list[str] | None = None,
    ) -> None:
        if columns is not None and (include is not None or exclude is not None):
            raise ConfigError(
                f"Concatenator(columns={columns!r}, include={include!r}, exclude={exclude!r}): "
                f"columns= names the columns already. Leave it out, or the other two."
            )
        self.columns = None if columns is None else check_columns(columns)
        self.include = None if include is None else check_columns(include, what="include")
        self.exclude = None if exclude is None else check_columns(exclude, what="exclude")
        self.output_column_name = one_name("output_column_name", output_column_name)
        self.dtype = None if dtype is None else number_type("dtype", dtype)
        if self.dtype is not None and self.dtype.kind not in "biufc":
            raise ConfigError(
                f"dtype={shown(dtype)} is not a type of numbers. Give one, such as numpy.float32."
            )
        self.raise_if_missing = flag("raise_if_missing", raise_if_missing)
        self.flatten = flag("flatten", flatten)

    def get_output_columns(self) -> list[str]:
        """Return the column of vectors. Not collective."""
        return [self.output_column_name]

    def get_input_columns(self) -> list[str]:
        """Return the columns that are read, if they are named. Not collective."""
        return self._named() or []

    def _named(self) -> list[str] | None:
        """Return the named columns without the excluded ones; None if it takes all others."""
        named = self.include if self.columns is None else self.columns
        return None if named is None else [one for one in named if one not in self._kept()]

    def _kept(self) -> Sequence[str]:
        return self.exclude or ()

    def _drops(self, name: str) -> bool:
        named = self._named()
        return name not in self._kept() if named is None else name in named

    def _columns_to_read(self) -> list[str] | None:
        return self._named()

    def _columns_of(self, batch: Any) -> list[str]:
        there = names_of(batch)
        found = [name for name in there if self._drops(name)]
        wanted = found if (named := self._named()) is None else named
        missing = [name for name in wanted if name not in there]
        if not found or (missing and self.raise_if_missing):
            what = f"columns {missing} are missing" if missing else "no column is left"
            raise ConfigError(f"Concatenator: {what}. The batch has {there}: name some of these.")
        return found if self.columns is None else [name for name in self.columns if name in there]

    def _transform_columns(self, columns: NumpyBatch) -> Mapping[str, Any]:
        parts = []
        for name, values in columns.items():
            if values.ndim > 1 and not self.flatten:
                raise ConfigError(
                    f"Concatenator: column {name!r} holds arrays of shape {values.shape[1:]}. Set "
                    f"flatten=True to add them component by component."
                )
            part = named_numbers(name, values)
            if self.dtype is not None:
                _check_range(name, part, self.dtype)
            parts.append(part)
        made = np.concatenate(parts, axis=1, dtype=self.dtype, casting="unsafe")
        return {self.output_column_name: made}


def _check_range(name: str, part: Array, dtype: np.dtype[Any]) -> None:
    if dtype.kind in "biu" and part.dtype.kind == "f" and not np.isfinite(part).all():
        raise ConfigError(
            f"column {name!r} holds NaN or infinite values, which dtype={dtype} cannot represent. "
            f"Put a SimpleImputer before Concatenator, or use a floating-point type."
        )
    finite = part[np.isfinite(part)]
    if not finite.size or dtype.kind not in "iuf" or np.can_cast(part.dtype, dtype):
        return
    limits: Any = np.iinfo(dtype) if dtype.kind in "iu" else np.finfo(dtype)
    # Python compares integers and floats exactly.
    number = int if dtype.kind in "iu" else float
    least, most = number(limits.min), number(limits.max)
    for value in (finite.min().item(), finite.max().item()):
        if not least <= number(value) <= most:
            raise ConfigError(
                f"column {name!r} holds {value}, which dtype={dtype} cannot represent: it reaches "
                f"from {least} to {most}. Use a larger type."
            )
