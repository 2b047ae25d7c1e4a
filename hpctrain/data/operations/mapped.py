"""Transformations of rows and batches: lazy, streamed, each rank its own part."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hpctrain.checks import check_text
from hpctrain.data.arguments import flag, list_of_names, mapping, one_name, one_or_more_names
from hpctrain.data.batch import check_batch_size
from hpctrain.data.formats import BatchFormat, check_format
from hpctrain.data.operations.call import Call
from hpctrain.data.operations.description import DatasetT, Description
from hpctrain.data.operations.expression import FilterExpression, WithColumns
from hpctrain.data.operations.row_steps import AddColumn, FilterRows, MapRows, Rename
from hpctrain.data.operations.scheduling import OF_TASKS, say_no_meaning
from hpctrain.data.schema import check_columns
from hpctrain.data.steps import Drop, Filter, MapBatches, Select
from hpctrain.errors import ConfigError


class Mapped(Description):
    """Operations on rows and batches."""

    def map(
        self: DatasetT,
        fn: Callable[..., Any],
        *,
        fn_args: Iterable[Any] | None = None,
        fn_kwargs: Mapping[str, Any] | None = None,
        fn_constructor_args: Iterable[Any] | None = None,
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
        **scheduling: Any,
    ) -> DatasetT:
        """Return a dataset with a function applied to each row, when it is read.

        Not collective. `map_batches` is much faster.

        Parameters
        ----------
        fn
            Takes a row, a dict of values by column, and returns one. A class is constructed once in
            each process.
        fn_args, fn_kwargs
            Further arguments of the function.
        fn_constructor_args, fn_constructor_kwargs
            Arguments of the class.
        **scheduling
            Arguments of Ray Data that say where a cluster runs it, such as ``num_cpus`` and
            ``concurrency``: accepted, without effect.
        """
        say_no_meaning("map()", scheduling, OF_TASKS)
        call = Call.of(fn, fn_args, fn_kwargs, fn_constructor_args, fn_constructor_kwargs)
        return self.with_step(MapRows(call))

    def flat_map(
        self: DatasetT,
        fn: Callable[..., Any],
        *,
        fn_args: Iterable[Any] | None = None,
        fn_kwargs: Mapping[str, Any] | None = None,
        fn_constructor_args: Iterable[Any] | None = None,
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
        **scheduling: Any,
    ) -> DatasetT:
        """Return a dataset with any number of rows for each row, when it is read.

        Not collective.

        Parameters
        ----------
        fn
            Takes a row and returns a list of rows.
        fn_args, fn_kwargs, fn_constructor_args, fn_constructor_kwargs
            As in `map`.
        **scheduling
            As in `map`.
        """
        say_no_meaning("flat_map()", scheduling, OF_TASKS)
        call = Call.of(fn, fn_args, fn_kwargs, fn_constructor_args, fn_constructor_kwargs)
        return self.with_step(MapRows(call, is_flat=True))

    def map_batches(
        self: DatasetT,
        fn: Callable[..., Any],
        *,
        batch_size: int | None = None,
        batch_format: BatchFormat = "numpy",
        fn_args: Iterable[Any] | None = None,
        fn_kwargs: Mapping[str, Any] | None = None,
        fn_constructor_args: Iterable[Any] | None = None,
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
        keeps_rows: bool | None = None,
        zero_copy_batch: bool = False,
        **scheduling: Any,
    ) -> DatasetT:
        """Return a dataset with a function applied to its batches, when they are read.

        Not collective.

        Parameters
        ----------
        fn
            Takes a batch and returns one in any format, or yields several. A batch may be empty. A
            class is constructed once in each process.
        batch_size
            Most rows of a batch; None is as many as are read at once.
        batch_format
            Format of the batch that it takes: "numpy" (a dict of arrays), "pandas" or "pyarrow".
            "default" is "numpy".
        fn_args, fn_kwargs
            Further arguments of the function.
        fn_constructor_args, fn_constructor_kwargs
            Arguments of the class.
        keeps_rows
            Whether it returns a row for each row. With None, a function is tried on the first two
            rows, and a class is assumed to. Passes over all rows accept any number of rows; when
            ranks share the rows, a different number is an error.
        zero_copy_batch
            Whether the function takes read-only arrays. Otherwise it may change them: views of the
            dataset's arrays are copied.
        **scheduling
            As in `map`.
        """
        say_no_meaning("map_batches()", scheduling, OF_TASKS)
        if batch_size is not None:
            check_batch_size(batch_size)
        call = Call.of(fn, fn_args, fn_kwargs, fn_constructor_args, fn_constructor_kwargs)
        return self.with_step(
            MapBatches(
                call,
                check_format(batch_format),
                batch_size,
                True if keeps_rows is None and call.is_class else keeps_rows,
                zero_copy_batch=flag("zero_copy_batch", zero_copy_batch),
            )
        )

    def filter(
        self: DatasetT,
        fn: Callable[..., Any] | None = None,
        expr: Any = None,
        *,
        batch_format: BatchFormat | None = None,
        fn_args: Iterable[Any] | None = None,
        fn_kwargs: Mapping[str, Any] | None = None,
        fn_constructor_args: Iterable[Any] | None = None,
        fn_constructor_kwargs: Mapping[str, Any] | None = None,
        **scheduling: Any,
    ) -> DatasetT:
        """Return a dataset of the rows for which a function or an expression is true.

        Not collective. An expression, or a function of batches, is much faster than one of rows.

        Parameters
        ----------
        fn
            Takes a row, and returns a bool. With `batch_format` it takes a read-only batch, and
            returns a bool for each of its rows.
        expr
            Instead: a text such as ``"x > 1 and name in ['a', 'b']"``, or an expression of
            ``pyarrow.compute``. Arrow computes it; a comparison with a missing value is not true.
        batch_format
            Format of the batches that the function takes; None is rows.
        fn_args, fn_kwargs, fn_constructor_args, fn_constructor_kwargs
            As in `map`.
        **scheduling
            As in `map`.

        Raises
        ------
        ConfigError
            If not exactly one of function and expression is given, or the text is not an
            expression.
        """
        say_no_meaning("filter()", scheduling, OF_TASKS)
        if (fn is None) == (expr is None):
            given = "neither a function nor expr=" if fn is None else "a function and expr="
            raise ConfigError(f"filter() was given {given}. Give one of them.")
        if fn is None:
            return self.with_step(FilterExpression(expr))
        call = Call.of(fn, fn_args, fn_kwargs, fn_constructor_args, fn_constructor_kwargs)
        if batch_format is None:
            return self.with_step(FilterRows(call))
        return self.with_step(Filter(call, check_format(batch_format)))

    def add_column(
        self: DatasetT,
        col: str,
        fn: Callable[..., Any],
        *,
        batch_format: BatchFormat = "pandas",
        **scheduling: Any,
    ) -> DatasetT:
        """Return a dataset with a column that a function computes from batches when they are read.

        Not collective.

        Parameters
        ----------
        col
            Name of the column; one that exists is replaced.
        fn
            Takes a batch, and returns a value for each of its rows, or one for all.
        batch_format
            Format of the batch that it takes.
        **scheduling
            As in `map`.
        """
        say_no_meaning("add_column()", scheduling, OF_TASKS)
        one_name("add_column(): col", col)
        return self.with_step(AddColumn(col, Call.of(fn, None, None), check_format(batch_format)))

    def with_column(
        self: DatasetT,
        column_name: str,
        expr: Any,
        **scheduling: Any,
    ) -> DatasetT:
        """Return a dataset with a column computed from others by an expression.

        Not collective. Arrow computes it. `add_column` does the same with a function.

        Parameters
        ----------
        column_name
            Name of the column; one that exists is replaced.
        expr
            A text such as ``"x * 2 + y"``, or an expression of ``pyarrow.compute``, as
            `hpctrain.data.expressions.col` gives it. The result for a missing value is missing.
        **scheduling
            As in `map`.

        Raises
        ------
        ConfigError
            If it is not an expression, or names a column that does not exist.
        """
        say_no_meaning("with_column()", scheduling, OF_TASKS)
        check_text("with_column(): the name", column_name)
        return Mapped.with_columns(self, {column_name: expr})

    def with_columns(
        self: DatasetT,
        exprs: Mapping[str, Any],
        **scheduling: Any,
    ) -> DatasetT:
        """Return a dataset with columns computed from others by expressions.

        Not collective. See `with_column`.

        Parameters
        ----------
        exprs
            Expressions by the names of the new columns, which they cannot use themselves.
        **scheduling
            As in `map`.

        Raises
        ------
        ConfigError
            If one is not an expression, or names a column that does not exist.
        """
        say_no_meaning("with_columns()", scheduling, OF_TASKS)
        step = WithColumns(mapping("with_columns(): exprs", exprs, example="{'y': 'x * 2'}"))
        check_columns(step.names(), self.columns())
        return self.with_step(step)

    def select_columns(self: DatasetT, cols: str | Sequence[str]) -> DatasetT:
        """Return a dataset of some columns; the others are not read.

        Not collective.

        Raises
        ------
        ConfigError
            If one does not exist.
        """
        columns = one_or_more_names("cols", cols)
        return _narrowed(self, Select(columns))

    def drop_columns(self: DatasetT, cols: str | Sequence[str]) -> DatasetT:
        """Return a dataset without some columns, which are not read.

        Not collective.

        Raises
        ------
        ConfigError
            If one does not exist.
        """
        columns = one_or_more_names("cols", cols)
        return _narrowed(self, Drop(columns))

    def rename_columns(self: DatasetT, names: Mapping[str, str] | Sequence[str]) -> DatasetT:
        """Return a dataset whose columns have other names.

        Not collective.

        Parameters
        ----------
        names
            New names by old ones, or of all columns in order.

        Raises
        ------
        ConfigError
            If a column does not exist, or two would have the same name.
        """
        step = Rename(
            dict(names)
            if isinstance(names, Mapping)
            else list_of_names("rename_columns(): names", names)
        )
        step.renamed(self.columns())
        return self.with_step(step)


def _narrowed(dataset: DatasetT, step: Select | Drop) -> DatasetT:
    """Return a dataset of the columns that a step leaves; as the first step, it reads no others."""
    left = step(dict.fromkeys(dataset.columns(), np.empty(0)))
    if dataset.steps:
        return dataset.with_step(step)
    return replace(dataset, columns_read=tuple(left))
