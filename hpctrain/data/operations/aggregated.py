"""Operations on all rows of the dataset: sort, groups, aggregates. Arrow computes them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hpctrain.checks import shown
from hpctrain.data.arguments import flag, items_of, one_name, one_or_more_names
from hpctrain.data.categories import plain
from hpctrain.data.operations.aggregates import (
    Aggregate,
    aggregate,
    aggregates_of,
    check_aggregates,
)
from hpctrain.data.operations.arrow import to_arrow_with_missing
from hpctrain.data.operations.description import DatasetT, Description
from hpctrain.data.operations.groups import GroupedData
from hpctrain.data.operations.mapped import Mapped
from hpctrain.data.operations.scheduling import say_no_meaning
from hpctrain.data.operations.whole import Sort, WholeSource
from hpctrain.data.optional import require
from hpctrain.data.schema import check_columns
from hpctrain.errors import ConfigError


class Aggregated(Description):
    """Operations on all rows.

    None and NaN both count as missing.
    """

    def sort(
        self: DatasetT,
        key: str | Sequence[str],
        descending: bool | Sequence[bool] = False,
        boundaries: Any = None,
    ) -> DatasetT:
        """Return a dataset of the rows in the order of some columns.

        Not collective. Each process that reads a row first reads the whole dataset into memory.
        Rows of equal keys stay in their order; rows whose key is missing come last.

        Parameters
        ----------
        key
            A column, or several of them.
        descending
            Whether the largest comes first, of all columns or of each.
        boundaries
            Accepted, without effect.

        Raises
        ------
        ConfigError
            If a column does not exist, or `descending` has another length.
        """
        say_no_meaning("sort()", {"boundaries": boundaries})
        keys = one_or_more_names("sort(): key", key)
        downs = _directions(descending, len(keys))
        if not keys or len(downs) != len(keys):
            raise ConfigError(
                f"sort({list(keys)!r}, descending={list(downs)!r}) has {len(keys)} columns and "
                f"{len(downs)} bools. Give at least one column, and one bool or one for each."
            )
        check_columns(keys, self.columns())
        return self.of_source(WholeSource(dataset=self, operation=Sort(keys, downs)))

    def groupby(
        self: DatasetT, key: str | Sequence[str] | None, num_partitions: int | None = None
    ) -> GroupedData[DatasetT]:
        """Return the groups of rows whose values of some columns are equal.

        Not collective. The columns of the aggregates are read into memory, whole, with the first
        group.

        Parameters
        ----------
        key
            A column, or several of them; None is one group.
        num_partitions
            Accepted, without effect.

        Raises
        ------
        ConfigError
            If a column does not exist.
        """
        say_no_meaning("groupby()", {"num_partitions": num_partitions})
        keys = () if key is None else one_or_more_names("groupby(): key", key)
        check_columns(keys, self.columns())
        return GroupedData(self, keys)

    def unique(self, column: str, ignore_nulls: bool = False) -> list[Any]:
        """Return the distinct values of a column, in the order of their first rows.

        Not collective. Reads the column now; only its different values are kept.

        Parameters
        ----------
        column
            Name of the column.
        ignore_nulls
            Whether to leave missing values out. Otherwise they are one None.

        Raises
        ------
        ConfigError
            If it does not exist, or its rows are arrays.
        """
        one_name("unique(): column", column)
        pyarrow = require("pyarrow", to="to find unique values")
        rows = Mapped.select_columns(self, [column])
        try:
            found = [
                pyarrow.table({column: to_arrow_with_missing(plain(piece))[column].unique()})
                for piece in rows.pieces([range(self.source.num_rows)])
                if piece
            ]
            if not found:
                return []
            # Arrow's type of a piece of objects that are all missing is null.
            table = pyarrow.concat_tables(found, promote_options="default")
            values = table[column].unique()
        except pyarrow.ArrowException as error:
            raise ConfigError(f"unique({column!r}): {error}.") from error
        return list(
            (values.drop_null() if flag("ignore_nulls", ignore_nulls) else values).to_pylist()
        )

    def sum(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> Any:
        """Return the sum of a column, or of several by ``sum(x)``.

        Not collective. Reads the columns now.

        Parameters
        ----------
        on
            A column, or several of them; None is all.
        ignore_nulls
            Whether to skip missing values. Otherwise the sum of a column that misses a value is
            None.

        Returns
        -------
        Any
            The value of one column, None if it has no values; a dict for several columns.

        Raises
        ------
        ConfigError
            If a column does not exist, or cannot be summed.
        """
        return _of_all(self, "sum", on, ignore_nulls)

    def mean(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> Any:
        """Return the mean of a column, or of several by ``mean(x)``. Not collective. See `sum`."""
        return _of_all(self, "mean", on, ignore_nulls)

    def min(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> Any:
        """Return the smallest value, or several by ``min(x)``. Not collective. See `sum`."""
        return _of_all(self, "min", on, ignore_nulls)

    def max(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> Any:
        """Return the largest value, or several by ``max(x)``. Not collective. See `sum`."""
        return _of_all(self, "max", on, ignore_nulls)

    def std(
        self,
        on: str | Sequence[str] | None = None,
        ddof: int = 1,
        ignore_nulls: bool = True,
    ) -> Any:
        """Return the standard deviation, or several by ``std(x)``.

        Not collective. See `sum`.

        Parameters
        ----------
        on
            As in `sum`.
        ddof
            Delta degrees of freedom: the divisor is the number of rows minus this.
        ignore_nulls
            As in `sum`.
        """
        return _of_all(self, "std", on, ignore_nulls, ddof=ddof)

    def aggregate(self, *aggs: Any) -> dict[str, Any]:
        """Return several aggregates of all rows, by name.

        Not collective. Reads the columns now.

        Parameters
        ----------
        *aggs
            Aggregates of `hpctrain.data.aggregate`, such as ``Sum("x")``.

        Raises
        ------
        ConfigError
            If one is something else, a column does not exist, or two have the same name.
        """
        return _computed(self, check_aggregates(aggs, self.columns(), ()))


def _directions(descending: Any, num_keys: int) -> tuple[bool, ...]:
    """Return a bool for each column; one stands for all."""
    if isinstance(descending, bool):
        return (descending,) * num_keys
    downs = items_of(descending)
    if downs is None or not all(isinstance(down, bool | np.bool_) for down in downs):
        raise ConfigError(
            f"sort(descending={shown(descending)}) is neither a bool nor a list of bools. Give "
            f"True, or one bool for each column."
        )
    return tuple(map(bool, downs))


def _of_all(
    dataset: Description,
    what: str,
    on: str | Sequence[str] | None,
    ignore_nulls: bool,
    *,
    ddof: int = 1,
) -> Any:
    wanted = aggregates_of(what, on, dataset.columns(), (), ignore_nulls=ignore_nulls, ddof=ddof)
    row = _computed(dataset, wanted)
    return row if len(row) > 1 else next(iter(row.values()))


def _computed(dataset: Description, wanted: Sequence[Aggregate]) -> dict[str, Any]:
    columns = list(dict.fromkeys(one.column for one in wanted if one.column))
    # A table without columns has no rows to count.
    rows = Mapped.select_columns(dataset, columns or dataset.columns()[:1])
    table = to_arrow_with_missing(plain(rows.all_rows()))
    (row,) = aggregate(table, (), wanted).to_pylist()
    # For one value Arrow's deviation is null, Ray Data's NaN.
    for one in wanted:
        if one.function == "stddev" and row[one.name] is None:
            missing = table[one.column].null_count
            if 0 < table.num_rows - missing <= one.ddof:
                row[one.name] = math.nan if one.skip_missing or not missing else None
    return dict(row)
