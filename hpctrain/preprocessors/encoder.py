"""Encoders: names for things become numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hpctrain.errors import ConfigError
from hpctrain.preprocessors.batches import (
    Array,
    Categories,
    NumpyBatch,
    Rows,
    names_of,
)
from hpctrain.preprocessors.categories import (
    codes_of,
    count_elements,
    count_in_lists,
    elements_of,
    hashable,
    in_order,
    is_list,
    most_frequent,
)
from hpctrain.preprocessors.columns import ColumnPreprocessor
from hpctrain.preprocessors.preprocessor import check_outputs, no_value
from hpctrain.preprocessors.statistics import Counts, collect, named_numbers
from hpctrain.world import Communicator

if TYPE_CHECKING:
    import pandas


class _Encoder(ColumnPreprocessor):
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
    """Replaces each value by its place among the values of its column, from 0.

    A value that was not there when the encoder was fitted becomes NaN, so the result is float64.

    Parameters
    ----------
    columns
        Columns of values that can be told apart.
    encode_lists
        Whether lists are encoded element by element; else a list is one value.
    output_columns
        Where the results go; by default into the columns themselves.

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
        self.output_columns = check_outputs(columns, output_columns)
        self.columns = list(columns)
        self.encode_lists = encode_lists

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
    """Replaces each value by a vector that is 1 at the place of the value, and 0 elsewhere.

    A value that was not there when the encoder was fitted becomes a vector of zeros. The result is
    one column of uint8 vectors.

    Parameters
    ----------
    columns
        Columns of values that can be told apart.
    max_categories
        How many values of a column get a place, the most frequent ones, by column.
    output_columns
        Where the results go; by default into the columns themselves.
    """

    def __init__(
        self,
        columns: list[str],
        *,
        max_categories: Mapping[str, int] | None = None,
        output_columns: list[str] | None = None,
    ) -> None:
        self.output_columns = check_outputs(columns, output_columns)
        self.columns = list(columns)
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

    Values that were not there when the encoder was fitted are not counted. The result is one column
    of int64 vectors.

    Parameters
    ----------
    columns
        Columns of lists.
    max_categories
        How many values of a column get a place, the most frequent ones, by column.
    output_columns
        Where the results go; by default into the columns themselves.
    """

    def __init__(
        self,
        columns: list[str],
        *,
        max_categories: Mapping[str, int] | None = None,
        output_columns: list[str] | None = None,
    ) -> None:
        self.output_columns = check_outputs(columns, output_columns)
        self.columns = list(columns)
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
    """Replaces each label by its place among the labels, from 0, as int64.

    A batch without the label column, as in prediction, is unchanged.

    Parameters
    ----------
    label_column
        The labels.
    output_column
        Where the result goes; by default into the label column itself.
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
            Has the output column.

        Raises
        ------
        PreprocessorNotFittedException
            If it is not fitted.
        ConfigError
            If a number is that of no label.
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
                f"label column {self.label_column!r} holds {unknown[:5]}, which the LabelEncoder "
                f"has not seen in the dataset it was fitted on. Fit it on all labels, or filter "
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
                f"column {name!r} holds {numbers[~is_known][0]}, and numbers are needed that are "
                f"those of a label: there are {len(self.labels)} labels, numbered from 0."
            )
        # Of labels of unlike types NumPy would make texts.
        is_mixed = len({type(label) for label in self.labels}) > 1
        labels = as_cells(self.labels) if is_mixed else np.array(self.labels)
        return {name: labels[numbers.astype(np.int64)]}


class Categorizer(_Encoder):
    """Makes columns categorical: pandas' ``category``, Arrow's dictionaries.

    A Dataset has the same categories in all batches, on every rank, and the trainers of XGBoost and
    LightGBM take them as such. In a batch of NumPy arrays, which have no such type, values stay,
    and those of no category become None.

    Parameters
    ----------
    columns
        Columns of values that can be told apart.
    dtypes
        Categories by column, as ``pandas.CategoricalDtype`` or as a list; others are learned.
    output_columns
        Where the results go; by default into the columns themselves.
    """

    def __init__(
        self,
        columns: list[str],
        dtypes: Mapping[str, pandas.CategoricalDtype | Sequence[Any]] | None = None,
        output_columns: list[str] | None = None,
    ) -> None:
        self.output_columns = check_outputs(columns, output_columns)
        self.columns = list(columns)
        self.dtypes = dict(dtypes or {})
        if unknown := sorted(set(self.dtypes) - set(columns)):
            raise ConfigError(f"dtypes names {unknown}, which is not in columns={list(columns)}.")

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
        return list(given), False


def as_cells(values: Sequence[Any]) -> Array:
    """Return an array of one Python object a row, lists too. Not collective."""
    cells = np.empty(len(values), dtype=object)
    for row, value in enumerate(values):
        cells[row] = value
    return cells


def check_limits(columns: Sequence[str], limits: Mapping[str, int] | None) -> dict[str, int]:
    """Return limits by column.

    Not collective.

    Raises
    ------
    ConfigError
        If one is of another column, or below 1.
    """
    for column, limit in (limits or {}).items():
        if column not in columns or isinstance(limit, bool) or limit < 1:
            raise ConfigError(
                f"max_categories={dict(limits or {})}: a number of 1 or more for some of the "
                f"columns {list(columns)} is needed."
            )
    return dict(limits or {})


def _codes_in(value: Any, codes: Mapping[Any, int]) -> Any:
    if is_list(value):
        elements = in_order(map(hashable, value)) if isinstance(value, (set, frozenset)) else value
        return [codes.get(hashable(element)) for element in elements]
    return codes.get(hashable(value))


def _with_nan(codes: Array) -> Array:
    return np.where(codes < 0, np.nan, codes.astype(np.float64))
