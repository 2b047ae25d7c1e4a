"""Encoders: they replace categorical values by numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hpctrain.checks import shown
from hpctrain.data.arguments import flag, items_of, mapping
from hpctrain.errors import ConfigError
from hpctrain.preprocessors.batches import Array, Categories, NumpyBatch, Rows, names_of
from hpctrain.preprocessors.categories import (
    check_limits,
    codes_of,
    count_elements,
    count_in_lists,
    elements_of,
    hashable,
    in_order,
    is_list,
    most_frequent,
)
from hpctrain.preprocessors.columns import ColumnPreprocessor, _PerColumn
from hpctrain.preprocessors.preprocessor import check_outputs, no_value
from hpctrain.preprocessors.statistics import Counts, collect, named_numbers
from hpctrain.world import Communicator

if TYPE_CHECKING:
    import pandas


_CATEGORIES = "{'size': ['S', 'M', 'L']}"


class _Encoder(_PerColumn):
    """Numbers the values of each column, in their order."""

    def _learn(
        self,
        rows: Rows,
        comm: Communicator,
        *,
        count: Callable[[Array], Counter[Any]] = count_elements,
        at_most: Mapping[str, int] | None = None,
        allow_missing: bool = False,
    ) -> dict[str, Any]:
        columns = self.get_input_columns()
        found = collect(rows, {column: lambda: Counts(count) for column in columns}, comm)
        stats = {}
        for column, counts in found.items():
            if counts.missing and not allow_missing:
                raise ConfigError(
                    f"column {column!r} has {counts.missing} missing values, which cannot be "
                    f"encoded. Put a SimpleImputer before {type(self).__name__}."
                )
            if not counts.counts and not counts.missing:
                raise no_value(column)
            limit = (at_most or {}).get(column)
            values = in_order(most_frequent(counts.counts, limit))
            stats[f"unique_values({column})"] = {value: code for code, value in enumerate(values)}
        return stats

    def _codes(self, column: str) -> dict[Any, int]:
        codes: dict[Any, int] = self._stats[f"unique_values({column})"]
        return codes


class OrdinalEncoder(_Encoder):
    """Replaces each value by its index among the sorted values of its column, from 0.

    A value that is not in the training data becomes NaN, so the result is float64.

    Parameters
    ----------
    columns
        Columns of categorical values.
    encode_lists
        Whether to encode lists element by element; else a list is one value.
    output_columns
        Names of the result columns; by default the columns are replaced.

    Examples
    --------
    >>> encoder = OrdinalEncoder(["c"]).fit({"c": np.array(["red", "blue", "red"])})
    >>> encoder.transform_batch({"c": np.array(["blue", "green", "red"])})
    {'c': array([ 0., nan,  1.])}
    """

    def __init__(
        self,
        columns: list[str],
        *,
        encode_lists: bool = True,
        output_columns: list[str] | None = None,
    ) -> None:
        self._take_columns(columns, output_columns)
        self.encode_lists = flag("encode_lists", encode_lists)

    def _fit_columns(self, rows: Rows, comm: Communicator) -> dict[str, Any]:
        count = count_in_lists if self.encode_lists else count_elements
        return self._learn(rows, comm, count=count)

    def _transform_columns(self, columns: NumpyBatch) -> Mapping[str, Any]:
        return {output: self._encoded(name, columns[name]) for name, output in self._names()}

    def _encoded(self, name: str, values: Array) -> Array:
        codes = self._codes(name)
        if not self.encode_lists:
            return _with_nan(codes_of(values, codes))
        if values.dtype != object or values.ndim > 1:
            return _with_nan(codes_of(values.reshape(-1), codes).reshape(values.shape))
        found = codes_of(values, codes)
        if (found < 0).any() and any(map(is_list, values)):
            return as_cells([_codes_in(row, codes) for row in values])
        return _with_nan(found)


class OneHotEncoder(_Encoder):
    """Replaces each value by a vector that is 1 at the index of the value, and 0 elsewhere.

    A value that is not in the training data becomes a vector of zeros. The result is one column of
    uint8 vectors.

    Parameters
    ----------
    columns
        Columns of categorical values.
    max_categories
        Most values to encode, by column: the most frequent ones.
    output_columns
        Names of the result columns; by default the columns are replaced.
    """

    def __init__(
        self,
        columns: list[str],
        *,
        max_categories: Mapping[str, int] | None = None,
        output_columns: list[str] | None = None,
    ) -> None:
        self._take_columns(columns, output_columns)
        self.max_categories = check_limits(columns, max_categories)

    def _fit_columns(self, rows: Rows, comm: Communicator) -> dict[str, Any]:
        return self._learn(rows, comm, at_most=self.max_categories)

    def _transform_columns(self, columns: NumpyBatch) -> Mapping[str, Any]:
        outputs = {}
        for name, output in self._names():
            codes = self._codes(name)
            found = codes_of(columns[name], codes)
            outputs[output] = (found[:, None] == np.arange(len(codes))).astype(np.uint8)
        return outputs


class MultiHotEncoder(_Encoder):
    """Replaces each list by a vector of counts of its values.

    Values that are not in the training data are not counted. The result is one column of int64
    vectors.

    Parameters
    ----------
    columns
        Columns of lists.
    max_categories
        Most values to encode, by column: the most frequent ones.
    output_columns
        Names of the result columns; by default the columns are replaced.
    """

    def __init__(
        self,
        columns: list[str],
        *,
        max_categories: Mapping[str, int] | None = None,
        output_columns: list[str] | None = None,
    ) -> None:
        self._take_columns(columns, output_columns)
        self.max_categories = check_limits(columns, max_categories)

    def _fit_columns(self, rows: Rows, comm: Communicator) -> dict[str, Any]:
        return self._learn(
            rows, comm, count=count_in_lists, at_most=self.max_categories, allow_missing=True
        )

    def _transform_columns(self, columns: NumpyBatch) -> Mapping[str, Any]:
        outputs = {}
        for name, output in self._names():
            codes = self._codes(name)
            counts = np.zeros((len(columns[name]), len(codes)), dtype=np.int64)
            for row, value in enumerate(columns[name]):
                elements = value if is_list(value) else [value]
                for element, times in Counter(map(hashable, elements)).items():
                    if element in codes:
                        counts[row, codes[element]] = times
            outputs[output] = counts
        return outputs


class LabelEncoder(_Encoder):
    """Replaces each label by its index among the sorted labels, from 0, as int64.

    A batch without the label column, as in prediction, stays unchanged.

    Parameters
    ----------
    label_column
        Column of the labels.
    output_column
        Name of the result column; by default the label column is replaced.
    """

    def __init__(self, label_column: str, *, output_column: str | None = None) -> None:
        check_outputs([label_column], None if output_column is None else [output_column])
        self.label_column = label_column
        self.output_column = label_column if output_column is None else output_column

    def get_input_columns(self) -> list[str]:
        """Return the label column. Not collective."""
        return [self.label_column]

    def get_output_columns(self) -> list[str]:
        """Return the output column. Not collective."""
        return [self.output_column]

    def inverse_transform(self, ds: Any) -> Any:
        """Return a dataset, or a batch, with labels in place of their numbers.

        Not collective.

        Parameters
        ----------
        ds
            A dataset or a batch that has the output column.

        Raises
        ------
        PreprocessorNotFittedException
            If it is not fitted.
        ConfigError
            If a number is not that of a label.
        """
        self._refuse_if_not_fitted()
        return _LabelDecoder(self.output_column, list(self._codes(self.label_column))).transform(ds)

    def _columns_of(self, batch: Any) -> list[str]:
        return [name for name in self.get_input_columns() if name in names_of(batch)]

    def _fit_columns(self, rows: Rows, comm: Communicator) -> dict[str, Any]:
        return self._learn(rows, comm)

    def _transform_columns(self, columns: NumpyBatch) -> Mapping[str, Any]:
        values = columns[self.label_column]
        codes = codes_of(values, self._codes(self.label_column))
        if (codes < 0).any():
            unknown = in_order(set(elements_of(values[codes < 0])))
            raise ConfigError(
                f"label column {self.label_column!r} holds {unknown[:5]}, which are not in the "
                f"dataset that the LabelEncoder was fitted on. Fit it on all labels, or filter "
                f"these rows out."
            )
        return {self.output_column: codes}


class _LabelDecoder(ColumnPreprocessor):
    _is_fittable = False

    def __init__(self, column: str, labels: list[Any]) -> None:
        self.columns = [column]
        self.labels = labels

    def _transform_columns(self, columns: NumpyBatch) -> Mapping[str, Any]:
        (name,) = self.columns
        numbers = named_numbers(name, columns[name]).reshape(columns[name].shape)
        is_known = np.isin(numbers, np.arange(len(self.labels)))
        if not is_known.all():
            raise ConfigError(
                f"column {name!r} holds {numbers[~is_known][0]}, which is not the number of a "
                f"label. There are {len(self.labels)} labels, numbered from 0: give the output of "
                f"the LabelEncoder."
            )
        # NumPy would convert labels of different types to texts, and ends a text at its last
        # character that is not NUL.
        kinds = {type(label) for label in self.labels}
        are_objects = len(kinds) > 1 or not kinds.isdisjoint((str, bytes))
        labels = as_cells(self.labels) if are_objects else np.array(self.labels)
        return {name: labels[numbers.astype(np.int64)]}


class Categorizer(_Encoder):
    """Makes columns categorical: pandas' ``category``, Arrow's dictionaries.

    A Dataset has the same categories in all batches, on every rank, and the trainers of XGBoost and
    LightGBM use them. NumPy arrays have no categorical type: in such a batch values stay, and
    values without a category become None.

    Parameters
    ----------
    columns
        Columns of categorical values.
    dtypes
        Categories by column, as ``pandas.CategoricalDtype`` or as a list. Those of other columns
        are learned.
    output_columns
        Names of the result columns; by default the columns are replaced.
    """

    def __init__(
        self,
        columns: list[str],
        dtypes: Mapping[str, pandas.CategoricalDtype | Sequence[Any]] | None = None,
        output_columns: list[str] | None = None,
    ) -> None:
        self._take_columns(columns, output_columns)
        self.dtypes = {} if dtypes is None else mapping("dtypes", dtypes, example=_CATEGORIES)
        for column, given in self.dtypes.items():
            if isinstance(given, str) or (
                not hasattr(given, "categories") and items_of(given) is None
            ):
                raise ConfigError(
                    f"dtypes[{column!r}] is {shown(given)}, which is neither a list of categories "
                    f"nor a pandas.CategoricalDtype. Give one, as in {_CATEGORIES}."
                )
            categories = getattr(given, "categories", given)
            if categories is None:
                raise ConfigError(
                    f"dtypes[{column!r}] is {shown(given)}, which has no categories. Name them, "
                    f"or leave the column out: they are learned."
                )
            distinct = {hashable(value) for value in categories}
            if len(distinct) < len(categories):
                raise ConfigError(
                    f"dtypes[{column!r}] is {shown(given)}, which names a category twice. Name "
                    f"each once."
                )
        if unknown := [name for name in self.dtypes if name not in columns]:
            raise ConfigError(
                f"dtypes names {unknown}, which is not in columns={list(columns)}. Add it to "
                f"columns, or leave it out of dtypes."
            )

    def _columns_to_read(self) -> list[str]:
        return [column for column in self.columns if column not in self.dtypes]

    def _fit_columns(self, rows: Rows, comm: Communicator) -> dict[str, Any]:
        learned = self._columns_to_read()
        found = collect(rows, dict.fromkeys(learned, Counts), comm) if learned else {}
        for column, counts in found.items():
            if not counts.counts and not counts.missing:
                raise no_value(column)
        return {f"categories({c})": in_order(counts.counts) for c, counts in found.items()}

    def _transform_columns(self, columns: NumpyBatch) -> Mapping[str, Any]:
        outputs: dict[str, Any] = {}
        for name, output in self._names():
            categories, ordered = self._categories(name)
            codes = codes_of(columns[name], {value: i for i, value in enumerate(categories)})
            outputs[output] = Categories(codes=codes, categories=categories, ordered=ordered)
        return outputs

    def _categories(self, column: str) -> tuple[list[Any], bool]:
        given: Any = self.dtypes.get(column)
        if given is None:
            return self._stats[f"categories({column})"], False
        if hasattr(given, "categories"):
            return [hashable(value) for value in given.categories.tolist()], bool(given.ordered)
        return [hashable(value) for value in given], False


def as_cells(values: Sequence[Any]) -> Array:
    """Return an array with one Python object per row; lists stay lists. Not collective."""
    cells = np.empty(len(values), dtype=object)
    for row, value in enumerate(values):
        cells[row] = value
    return cells


def _codes_in(value: Any, codes: Mapping[Any, int]) -> Any:
    if is_list(value):
        elements = in_order(map(hashable, value)) if isinstance(value, (set, frozenset)) else value
        return [codes.get(hashable(element)) for element in elements]
    return codes.get(hashable(value))


def _with_nan(codes: Array) -> Array:
    return np.where(codes < 0, np.nan, codes.astype(np.float64))
