"""Rows with equal keys, and aggregates of them: computed by Arrow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import Any, Generic

import numpy as np

from hpctrain.data.arrow_batches import from_arrow
from hpctrain.data.batch import Batch, concatenate, num_rows
from hpctrain.data.categories import plain
from hpctrain.data.formats import BatchFormat, check_format, from_any, to_format
from hpctrain.data.operations.aggregates import (
    Aggregate,
    aggregate,
    aggregates_of,
    check_aggregates,
)
from hpctrain.data.operations.arrow import to_arrow_with_missing
from hpctrain.data.operations.call import Call
from hpctrain.data.operations.description import DatasetT, Description
from hpctrain.data.operations.mapped import Mapped
from hpctrain.data.operations.scheduling import OF_TASKS, say_no_meaning
from hpctrain.data.operations.whole import Sort, WholeSource, sorted_rows
from hpctrain.data.optional import require


@dataclass(frozen=True)
class AggregateGroups:
    """A row for each group, in the order of the keys."""

    keys: tuple[str, ...]
    aggregates: tuple[Aggregate, ...]
    keeps_rows: bool = False

    def __call__(self, dataset: Description) -> Batch:
        """Return all groups. Not collective."""
        batch = from_arrow(
            aggregate(to_arrow_with_missing(plain(dataset.all_rows())), self.keys, self.aggregates)
        )
        if not self.keys:
            return batch
        order = sorted_rows(batch, self.keys, [False] * len(self.keys))
        return {name: array[order] for name, array in batch.items()}


@dataclass(frozen=True)
class MapGroups:
    """The results of a function for the rows of each group."""

    keys: tuple[str, ...]
    call: Call
    batch_format: BatchFormat
    keeps_rows: bool = False

    def __call__(self, dataset: Description) -> Batch:
        """Return the results for all groups. Not collective."""
        batch = plain(dataset.all_rows())
        order = sorted_rows(batch, self.keys, [False] * len(self.keys))
        table = to_arrow_with_missing({name: batch[name][order] for name in self.keys})
        starts = [0, *_changes(table), num_rows(batch)] if num_rows(batch) else []
        made = []
        for start, stop in pairwise(starts):
            group = {name: array[order[start:stop]] for name, array in batch.items()}
            result = self.call(to_format(group, self.batch_format))
            results = result if hasattr(result, "__next__") else [result]
            made += [from_any(one) for one in results]
        return concatenate(made) if made else {}


def _changes(table: Any) -> list[int]:
    """Return the rows whose keys differ from those of the row before."""
    compute = require("pyarrow.compute", to="to group")

    def differs(column: Any) -> np.ndarray:
        before, after = column.slice(0, len(column) - 1), column.slice(1)
        both = compute.and_(compute.is_null(before), compute.is_null(after))
        same = compute.fill_null(compute.equal(before, after), False)
        unlike: np.ndarray = compute.invert(compute.or_(same, both)).to_numpy(zero_copy_only=False)
        return unlike

    changed = reduce(np.logical_or, [differs(column.combine_chunks()) for column in table.columns])
    return [int(row) + 1 for row in np.flatnonzero(changed)]


class GroupedData(Generic[DatasetT]):
    """The groups of a dataset, made by `hpctrain.data.Dataset.groupby`.

    Each aggregate is a dataset of a row for each group, sorted by the keys; rows whose key is
    missing are the last group. It is computed when it is first read, from all rows of the columns
    that it needs.

    Parameters
    ----------
    dataset
        The dataset.
    keys
        Columns whose values are equal within a group; without keys there is one group.
    """

    def __init__(self, dataset: DatasetT, keys: Sequence[str]) -> None:
        self._dataset = dataset
        self._keys = tuple(keys)

    def __repr__(self) -> str:
        """Return the keys and the dataset."""
        return f"GroupedData({list(self._keys)!r} of {self._dataset!r})"

    def count(self) -> DatasetT:
        """Return the number of rows of each group, as ``count()``. Not collective."""
        return self.with_aggregates([Aggregate(function="count_all", column=None, name="count()")])

    def sum(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> DatasetT:
        """Return sums, as ``sum(x)``. Not collective. See `hpctrain.data.Dataset.sum`."""
        return self._each("sum", on, ignore_nulls)

    def mean(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> DatasetT:
        """Return means, as ``mean(x)``. Not collective."""
        return self._each("mean", on, ignore_nulls)

    def min(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> DatasetT:
        """Return the smallest values, as ``min(x)``. Not collective."""
        return self._each("min", on, ignore_nulls)

    def max(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> DatasetT:
        """Return the largest values, as ``max(x)``. Not collective."""
        return self._each("max", on, ignore_nulls)

    def std(
        self,
        on: str | Sequence[str] | None = None,
        ddof: int = 1,
        ignore_nulls: bool = True,
    ) -> DatasetT:
        """Return standard deviations, as ``std(x)``; NaN for one row. Not collective."""
        return self._each("std", on, ignore_nulls, ddof=ddof)

    def aggregate(self, *aggs: Any) -> DatasetT:
        """Return several aggregates of each group, as a column each.

        Not collective.

        Parameters
        ----------
        *aggs
            Aggregates of `hpctrain.data.aggregate`, such as ``Sum("x")`` and
            ``Count(alias_name="rows")``.

        Raises
        ------
        ConfigError
            If one is something else, a column does not exist, or two have the same name.
        """
        return self.with_aggregates(check_aggregates(aggs, self._dataset.columns(), self._keys))

    def with_column(self, column_name: str, expr: Any) -> DatasetT:
        """Return the rows in the order of the keys, with a column computed by an expression.

        Not collective. See `hpctrain.data.Dataset.with_column`.

        Parameters
        ----------
        column_name, expr
            As there.
        """
        keys = self._keys
        order = Sort(keys, (False,) * len(keys))
        rows = self._dataset
        if keys:
            rows = rows.of_source(WholeSource(dataset=rows, operation=order))
        return Mapped.with_column(rows, column_name, expr)

    def map_groups(
        self,
        fn: Callable[..., Any],
        *,
        batch_format: BatchFormat = "numpy",
        fn_args: Sequence[Any] | None = None,
        fn_kwargs: dict[str, Any] | None = None,
        fn_constructor_args: Sequence[Any] | None = None,
        fn_constructor_kwargs: dict[str, Any] | None = None,
        **scheduling: Any,
    ) -> DatasetT:
        """Return the results of a function for the rows of each group, in the order of the keys.

        Not collective.

        Parameters
        ----------
        fn
            Takes a batch with the rows of a group, and returns a batch of any number of rows.
        batch_format
            Format of the batch that it takes.
        fn_args, fn_kwargs, fn_constructor_args, fn_constructor_kwargs
            As in `hpctrain.data.Dataset.map_batches`.
        **scheduling
            As in `hpctrain.data.Dataset.map`.
        """
        say_no_meaning("map_groups()", scheduling, OF_TASKS)
        call = Call.of(fn, fn_args, fn_kwargs, fn_constructor_args, fn_constructor_kwargs)
        operation = MapGroups(self._keys, call, check_format(batch_format))
        return self._dataset.of_source(WholeSource(dataset=self._dataset, operation=operation))

    def _each(
        self, what: str, on: str | Sequence[str] | None, ignore_nulls: bool, *, ddof: int = 1
    ) -> DatasetT:
        return self.with_aggregates(
            aggregates_of(
                what, on, self._dataset.columns(), self._keys, ignore_nulls=ignore_nulls, ddof=ddof
            )
        )

    def with_aggregates(self, aggregates: Sequence[Aggregate]) -> DatasetT:
        """Return a dataset of some aggregates of each group. Not collective."""
        operation = AggregateGroups(self._keys, tuple(aggregates))
        needed = dict.fromkeys([*self._keys, *(a.column for a in aggregates if a.column)])
        # A table without columns has no rows to count.
        columns = list(needed) or self._dataset.columns()[:1]
        rows = Mapped.select_columns(self._dataset, columns)
        return self._dataset.of_source(WholeSource(dataset=rows, operation=operation))
