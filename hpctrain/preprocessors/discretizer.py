"""Discretizers: they replace each number by the number of its bin."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np

from hpctrain.checks import check_choice, check_count, shown
from hpctrain.data.arguments import flag, is_real, items_of, mapping, number_type
from hpctrain.errors import ConfigError
from hpctrain.preprocessors.batches import Array, Categories, NumpyBatch, Rows
from hpctrain.preprocessors.columns import _PerColumn
from hpctrain.preprocessors.statistics import (
    Extremes,
    collect,
    infinite_values,
    named_numbers,
)
from hpctrain.world import Communicator


class _Discretizer(_PerColumn):
    def __init__(
        self,
        columns: list[str],
        bins: Any,
        *,
        right: bool,
        include_lowest: bool,
        duplicates: str,
        dtypes: Mapping[str, Any] | None,
        output_columns: list[str] | None,
    ) -> None:
        check_choice("duplicates", duplicates, ("raise", "drop"))
        self._take_columns(columns, output_columns)
        if isinstance(bins, Mapping):
            check_every_column(self.columns, bins)
        self.right = flag("right", right)
        self.include_lowest = flag("include_lowest", include_lowest)
        self.duplicates = duplicates
        self.dtypes = (
            {} if dtypes is None else mapping("dtypes", dtypes, example="{'x': numpy.int32}")
        )

    def _edges(self, column: str) -> Array:
        raise NotImplementedError

    def _checked(self, column: str, edges: Any) -> list[float]:
        given = None if isinstance(edges, str) else items_of(edges)
        if given is None or not all(_is_edge(edge) for edge in given):
            raise ConfigError(
                f"bins of column {column!r} are {shown(edges)}, which is not a list of numbers. "
                f"Give edges, such as [0, 10, 20]."
            )
        found = [float(edge) for edge in given]
        distinct = sorted(set(found))
        if np.isnan(found).any():
            raise ConfigError(
                f"bins of column {column!r} are {found}. Give edges that are not NaN."
            )
        if found != sorted(found) or (len(distinct) < len(found) and self.duplicates == "raise"):
            raise ConfigError(
                f"bins of column {column!r} are {found}. Give edges in ascending order; "
                f"duplicates='drop' drops repeated ones."
            )
        if len(distinct) < 2:
            raise ConfigError(
                f"bins of column {column!r} are {found}. Give at least two different edges."
            )
        return distinct

    def _transform_columns(self, columns: NumpyBatch) -> Mapping[str, Any]:
        return {output: self._binned(name, columns[name]) for name, output in self._names()}

    def _binned(self, column: str, values: Array) -> Any:
        edges = self._edges(column)
        numbers = named_numbers(column, values).astype(np.float64).reshape(values.shape)
        bins = np.searchsorted(edges, numbers, side="left" if self.right else "right") - 1
        if self.include_lowest and self.right:
            bins = np.where(numbers == edges[0], 0, bins)
        outside = np.isnan(numbers) | (bins < 0) | (bins >= len(edges) - 1)
        dtype: Any = self.dtypes.get(column)
        if hasattr(dtype, "categories"):
            codes = np.where(outside, -1, bins)
            return Categories(
                codes=codes, categories=list(dtype.categories), ordered=bool(dtype.ordered)
            )
        if dtype is None:
            return np.where(outside, np.nan, bins.astype(np.float64))
        if outside.any():
            raise ConfigError(
                f"column {column!r} holds {numbers[outside][0]}, which is outside of the bins from "
                f"{edges[0]} to {edges[-1]}, and {np.dtype(dtype)} has no NaN. Leave `dtypes` out, "
                f"or use wider bins."
            )
        return bins.astype(dtype)


class CustomKBinsDiscretizer(_Discretizer):
    """Replaces each number by the number of its bin, from 0, with given edges.

    A number outside of all bins becomes NaN, so the result is float64 unless `dtypes` gives another
    type.

    Parameters
    ----------
    columns
        Columns of numbers.
    bins
        Edges of the bins, in ascending order; the same for all columns, or by column. Or a
        ``pandas.IntervalIndex`` without gaps.
    right
        Whether a number on an edge belongs to the bin below it; if `bins` are intervals, they say.
    include_lowest
        Whether a number on the lowest edge is in the first bin; only with `right`.
    duplicates
        What to do with repeated edges: ``"raise"`` or ``"drop"``.
    dtypes
        By column, an integer type, or a ``pandas.CategoricalDtype`` with a category for each bin.
    output_columns
        Names of the result columns; by default the columns are replaced.
    """

    _is_fittable = False

    def __init__(
        self,
        columns: list[str],
        bins: Any,
        *,
        right: bool = True,
        include_lowest: bool = False,
        duplicates: str = "raise",
        dtypes: Mapping[str, Any] | None = None,
        output_columns: list[str] | None = None,
    ) -> None:
        super().__init__(
            columns,
            bins,
            right=right,
            include_lowest=include_lowest,
            duplicates=duplicates,
            dtypes=dtypes,
            output_columns=output_columns,
        )
        by_column = bins if isinstance(bins, Mapping) else dict.fromkeys(self.columns, bins)
        self.right = _closed_right(by_column, self.right)
        self.bins = {
            column: self._checked(column, _edges_of(by_column[column])) for column in self.columns
        }
        check_categories(self.dtypes, {c: len(edges) - 1 for c, edges in self.bins.items()})

    def _edges(self, column: str) -> Array:
        return np.array(self.bins[column])


class UniformKBinsDiscretizer(_Discretizer):
    """Replaces each number by the number of its bin, from 0, of bins of equal width.

    The bins reach from the smallest to the largest number of the training data. A number outside
    becomes NaN, so the result is float64 unless `dtypes` gives another type.

    Parameters
    ----------
    columns
        Columns of numbers.
    bins
        Number of bins, for all columns or by column.
    right
        Whether a number on an edge belongs to the bin below it.
    include_lowest
        Whether a number on the lowest edge is in the first bin. The smallest number always is: as
        in ``pandas.cut``, the lowest edge is below it by a thousandth of the range.
    duplicates
        What to do with repeated edges: ``"raise"`` or ``"drop"``.
    dtypes
        By column, an integer type, or a ``pandas.CategoricalDtype`` with a category for each bin.
    output_columns
        Names of the result columns; by default the columns are replaced.
    """

    def __init__(
        self,
        columns: list[str],
        bins: int | Mapping[str, int],
        *,
        right: bool = True,
        include_lowest: bool = False,
        duplicates: str = "raise",
        dtypes: Mapping[str, Any] | None = None,
        output_columns: list[str] | None = None,
    ) -> None:
        super().__init__(
            columns,
            bins,
            right=right,
            include_lowest=include_lowest,
            duplicates=duplicates,
            dtypes=dtypes,
            output_columns=output_columns,
        )
        self.bins = dict(bins) if isinstance(bins, Mapping) else bins
        counts = {column: self._count(column) for column in self.columns}
        for column, count in counts.items():
            check_count(f"bins of column {column!r}", count, at_least=1)
        check_categories(self.dtypes, counts)

    def _count(self, column: str) -> int:
        return self.bins[column] if isinstance(self.bins, Mapping) else self.bins

    def _fit_columns(self, rows: Rows, comm: Communicator) -> dict[str, Any]:
        stats: dict[str, Any] = {}
        for column, found in collect(rows, dict.fromkeys(self.columns, Extremes), comm).items():
            if found.shape != () or np.isnan(found.minimum).any():
                raise ConfigError(
                    f"column {column!r} holds arrays, or no number in any row of any rank. Give a "
                    f"column of single numbers."
                )
            low, high = float(found.minimum[0]), float(found.maximum[0])
            if np.isinf(high - low):
                raise ConfigError(f"column {column!r}: {infinite_values()}")
            if low == high:
                # As in pandas.cut: bins need a width.
                around = 0.001 * abs(low) if low else 0.001
                edges = np.linspace(low - around, high + around, self._count(column) + 1)
            else:
                edges = np.linspace(low, high, self._count(column) + 1)
                if self.right:
                    edges[0] -= (high - low) * 0.001
                else:
                    edges[-1] += (high - low) * 0.001
            stats[f"edges({column})"] = self._checked(column, edges)
        return stats

    def _edges(self, column: str) -> Array:
        return np.array(self._stats[f"edges({column})"])


def check_every_column(columns: Sequence[str], given: Mapping[str, Any]) -> None:
    """Check that bins are given for exactly the columns.

    Not collective.

    Raises
    ------
    ConfigError
        If a column has no bins, or bins have no column.
    """
    if set(given) != set(columns):
        raise ConfigError(
            f"bins are given for {list(given)}, but columns are {list(columns)}. Give bins for "
            f"each column, or one value for all."
        )


def check_categories(dtypes: Mapping[str, Any], num_bins: Mapping[str, int]) -> None:
    """Check that types can hold the number of a bin.

    Not collective.

    Raises
    ------
    ConfigError
        If a type has no column, is not an integer type, is too small, or has another number of
        categories.
    """
    for column, dtype in dtypes.items():
        if column not in num_bins:
            raise ConfigError(
                f"dtypes names {column!r}, which is not in columns={list(num_bins)}. Name one of "
                f"these."
            )
        if hasattr(dtype, "categories"):
            if len(dtype.categories) != num_bins[column]:
                raise ConfigError(
                    f"dtypes[{column!r}] has {len(dtype.categories)} categories for "
                    f"{num_bins[column]} bins. Give one category for each bin."
                )
        elif (
            number_type(f"dtypes[{column!r}]", dtype).kind not in "iu"
            or np.iinfo(dtype).max < num_bins[column] - 1
        ):
            raise ConfigError(
                f"dtypes[{column!r}]={dtype!r} cannot hold the numbers of {num_bins[column]} bins. "
                f"Give a larger integer type, or a CategoricalDtype."
            )


def _closed_right(bins: Mapping[str, Any], right: bool) -> bool:
    """Return whether all bins are closed on the right, as intervals say that are given."""
    closed = {str(given.closed) for given in bins.values() if hasattr(given, "closed")}
    if not closed:
        return right
    has_lists = any(not hasattr(given, "closed") for given in bins.values())
    said = closed == {"right"}
    if len(closed) > 1 or closed & {"both", "neither"} or (said != right and (said or has_lists)):
        raise ConfigError(
            f"bins are intervals closed={', '.join(sorted(closed))}, and right={right}. Give "
            f"intervals that are all closed on the left or all on the right, and right= for other "
            f"bins beside them."
        )
    return said


def _edges_of(bins: Any) -> Iterable[float]:
    if hasattr(bins, "left") and hasattr(bins, "right"):
        if not (np.asarray(bins.left[1:]) == np.asarray(bins.right[:-1])).all():
            raise ConfigError(f"bins={bins!r} has gaps or overlaps. Give intervals that touch.")
        return [*np.asarray(bins.left).tolist(), float(bins.right[-1])]
    return bins  # type: ignore[no-any-return]


def _is_edge(edge: Any) -> bool:
    if isinstance(edge, bool) or not isinstance(edge, Real):
        return False
    # Outer edges may be infinite.
    return is_real(edge) or not isinstance(edge, Integral)
