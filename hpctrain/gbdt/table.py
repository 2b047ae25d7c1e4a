"""A rank's parts of the datasets, as matrices; all ranks check them together before training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Number
from typing import Any

import numpy as np

from hpctrain.data.categories import categories_of
from hpctrain.data.iterator import DataIterator
from hpctrain.errors import ConfigError
from hpctrain.gbdt.boosting import TRAIN, Boosting, check_same_columns
from hpctrain.gbdt.features import (
    Features,
    as_numbers,
    columns_of,
    distinct,
    feature_names,
    num_rows_of,
    sorted_values,
    width_of,
)
from hpctrain.gbdt.groups import run_lengths, whole_groups
from hpctrain.gbdt.resume import continued
from hpctrain.missing import is_missing
from hpctrain.predict.categories import is_categorical
from hpctrain.worker.context import get_dataset_shard, heartbeat
from hpctrain.world import Communicator

Array = np.ndarray[Any, Any]

# A batch of 28 float32 columns is 7 MiB: it stays in the cache while it is copied to the matrix.
_BATCH_ROWS = 65536


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of a dataset: all rows of a rank, or a batch of them."""

    matrix: Array
    """Shape ``(rows, features)``."""
    label: Array
    weight: Array | None = None
    groups: Array | None = None
    """Sizes of the groups, in order."""

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return len(self.label)


class ShardReader:
    """One rank's part of one dataset, read batch by batch, as often as needed.

    Parameters
    ----------
    name
        Name of the dataset.
    boosting
        Settings, which name the columns.
    """

    def __init__(self, name: str, boosting: Boosting) -> None:
        self.name = name
        self._boosting = boosting
        shard = get_dataset_shard(name)
        # Several passes read the rows, and labels must match features: all need one order.
        self._shard: Any = shard.in_one_order() if isinstance(shard, DataIterator) else shard
        frame = hasattr(self._shard, "iloc")
        if not frame and not hasattr(self._shard, "iter_batches"):
            raise ConfigError(
                f"dataset {name!r} is a {type(self._shard).__name__}, which has no named columns. "
                f"Give a pandas data frame, or a hpctrain.data.Dataset (read_parquet, read_hdf5, "
                f"from_numpy, ...)."
            )
        self.categories = {} if frame else self._declared_categories()
        """Categories in the types of a dataset's features; a frame has them in its batches."""

    def batches(self) -> Iterator[dict[str, Any]]:
        """Yield the rows in order, as columns by name. Not collective."""
        shard = self._shard
        if hasattr(shard, "iloc"):
            for start in range(0, len(shard), _BATCH_ROWS):
                yield columns_of(shard.iloc[start : start + _BATCH_ROWS])
            return
        for batch in shard.iter_batches(batch_size=_BATCH_ROWS, batch_format="numpy"):
            columns = columns_of(batch)
            # A rank without rows gets an empty batch, so that all ranks have the same number.
            if num_rows_of(columns):
                heartbeat()
                yield columns

    def first(self) -> dict[str, Any]:
        """Return the first batch; empty if this rank has no rows. Not collective."""
        return next(self.batches(), {})

    def tables(self, features: Features, dtype: Any) -> Iterator[Table]:
        """Yield the rows in order, as tables without groups. Not collective."""
        for columns in self.batches():
            yield self._table(columns, features, dtype)

    def read(self, features: Features, dtype: Any, comm: Communicator) -> Table:
        """Return all rows. Collective if rows have groups."""
        # Unused pages are never touched, so they take no memory.
        matrix = np.empty((self._rows_at_most(), len(features.names)), dtype=dtype)
        filled = 0
        parts: list[Table] = []
        groups: list[Array] = []
        column = self._boosting.group_column
        for columns in self.batches():
            end = filled + num_rows_of(columns)
            if end > len(matrix):
                more = np.empty((end, len(features.names)), dtype=dtype)
                matrix = np.concatenate([matrix[:filled], more])
            parts.append(self._table(columns, features, dtype, out=matrix[filled:end]))
            filled = end
            if column is not None:
                groups.append(np.asarray(columns[column]))
        arrays = {
            "matrix": matrix[:filled],
            "label": np.concatenate([part.label for part in parts]),
        }
        weights = [part.weight for part in parts if part.weight is not None]
        if weights:
            arrays["weight"] = np.concatenate(weights)
        sizes = None
        if column is not None:
            arrays["group"] = np.concatenate(groups)
            arrays = whole_groups(arrays, comm, dataset=self.name, column=column)
            sizes = run_lengths(arrays.pop("group"), dataset=self.name, column=column)
        return Table(groups=sizes, **arrays)

    def _declared_categories(self) -> dict[str, list[Any]]:
        found = {n: categories_of(c.dtype) for n, c in self._shard.schema().items()}
        values = {
            n: c.values.tolist() for n, c in found.items() if c and c.values.dtype.kind not in "mM"
        }
        return {
            name: known
            for name, known in values.items()
            if name not in self._boosting.no_features and all(map(_is_plain, known))
        }

    def _rows_at_most(self) -> int:
        shard = self._shard
        # The number of rows before filters.
        return len(shard) if hasattr(shard, "iloc") else int(shard.num_rows)

    def _table(
        self,
        columns: Mapping[str, Any],
        features: Features,
        dtype: Any,
        out: Array | None = None,
    ) -> Table:
        weight = self._boosting.weight_column
        return Table(
            matrix=features.matrix(columns, dtype=dtype, out=out),
            label=_label(columns, self._boosting.label_column),
            weight=None if weight is None else _weights(columns, weight),
        )


def open_datasets(
    boosting: Boosting, comm: Communicator, *, known: Features | None = None
) -> tuple[Features, dict[str, ShardReader]]:
    """Return the features, and a reader for each dataset, after all ranks have checked them.

    Collective.

    Parameters
    ----------
    boosting
        Settings, which name the columns.
    comm
        Communicator of all ranks.
    known
        Features of the model to boost further, whose order and codes are kept.

    Raises
    ------
    ConfigError
        On every rank, if a column is missing, a rank has no rows, schemas differ, categories are
        neither texts nor numbers, or features are not those of the model.
    """
    readers = {name: ShardReader(name, boosting) for name in boosting.datasets}
    first = {name: reader.first() for name, reader in readers.items()}
    schemas = {name: _schema(columns, readers[name], boosting) for name, columns in first.items()}
    seen = comm.allgather(schemas)
    of_train = _complete([rank[TRAIN] for rank in seen])
    for name in boosting.datasets:
        _check_schemas(name, [rank[name] for rank in seen], of_train, boosting)
    names = feature_names(first[TRAIN], without=boosting.no_features)
    if not names:
        raise ConfigError(
            f"dataset {TRAIN!r} has no features: its columns are {sorted(first[TRAIN])}, but "
            f"{sorted(boosting.no_features)} are label, weight or group. Add columns of features."
        )
    features = Features(
        names=tuple(names),
        label=boosting.label_column,
        categories=_categories(readers[TRAIN], first[TRAIN], boosting, comm),
    )
    return features if known is None else continued(known, features), readers


def check_rows(
    findings: Mapping[str, Mapping[str, int]], boosting: Boosting, comm: Communicator
) -> None:
    """Check that all labels and weights of all ranks are finite. Collective.

    Parameters
    ----------
    findings
        Counts of `find_bad_rows` on this rank, by dataset.

    Raises
    ------
    ConfigError
        On every rank, if a rank has counted some that are not.
    """
    ranks = comm.allgather(findings)
    for name in boosting.datasets:
        for what, column in (("label", boosting.label_column), ("weight", boosting.weight_column)):
            counts = [rank[name][what] for rank in ranks]
            if not any(counts):
                continue
            where = [number for number, count in enumerate(counts) if count]
            raise ConfigError(
                f"dataset {name!r}: {sum(counts)} of {sum(r[name]['rows'] for r in ranks)} rows "
                f"have a NaN or infinite {what} (column {column!r}; ranks {where[:10]}). Every row "
                f"needs a number there: drop these rows, or fill them in."
            )


def find_bad_rows(tables: Iterator[Table] | Sequence[Table]) -> dict[str, int]:
    """Count rows, and those whose label or weight is not finite. Not collective."""
    found = {"rows": 0, "label": 0, "weight": 0}
    for table in tables:
        found["rows"] += table.num_rows
        found["label"] += _count_bad(table.label)
        if table.weight is not None:
            found["weight"] += _count_bad(table.weight)
    return found


def exact_dtype(columns: Mapping[str, Any], features: Features) -> Any:
    """Return float32 if it represents all features exactly, else float64. Not collective."""
    for name, values in columns.items():
        is_feature = name in features.names or f"{name}_0" in features.names
        if not is_feature or name in features.categories:
            continue
        if not np.can_cast(as_numbers(name, values[:1]).dtype, np.float32, casting="safe"):
            return np.float64
    return np.float32


def _label(columns: Mapping[str, Any], name: str) -> Array:
    advice = (
        "Encode labels as numbers: with a preprocessor, such as LabelEncoder, or in the dataset."
    )
    label = as_numbers(name, columns[name], advice=advice)
    return label if width_of(label) is None else label.reshape(len(label), -1)


def _weights(columns: Mapping[str, Any], name: str) -> Array:
    return as_numbers(name, columns[name], advice="Give a column of numbers as weight_column.")


def _count_bad(values: Array) -> int:
    return 0 if values.dtype.kind != "f" else int((~np.isfinite(values)).sum())


Schema = dict[str, tuple[str, int | None]]

_MISSING = "missing values"
"""Kind of a column whose first values are all missing: it can become any other."""
_LISTS = "lists"


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | int | float)


def _schema(columns: Mapping[str, Any], reader: ShardReader, boosting: Boosting) -> Schema:
    # Columns in categorical_columns may have another type in each dataset.
    categories = reader.categories.keys() - {*boosting.categorical_columns}
    return {
        name: ("categories" if name in categories else _kind(values), width_of(values))
        for name, values in columns.items()
    }


def _kind(values: Any) -> str:
    if is_categorical(values):
        return "categories"
    kind = values.dtype.kind
    if kind != "O":
        return "numbers" if kind in "biuf" else "text" if kind in "UST" else "other"
    # Numbers of which some are missing, and pandas' texts, are objects too.
    present = next((value for value in np.asarray(values).flat if not is_missing(value)), None)
    if present is None:
        return _MISSING
    if isinstance(present, str | bytes):
        return "text"
    if isinstance(present, list | tuple | set | dict | np.ndarray):
        return _LISTS
    return "numbers" if isinstance(present, Number | np.bool_) else "other"


def _complete(schemas: Sequence[Schema]) -> Schema:
    """Return the first rank's schema, with what others know of columns of missing values."""
    known = {
        n: kind for schema in schemas[::-1] for n, kind in schema.items() if kind[0] != _MISSING
    }
    return {name: known.get(name, kind) for name, kind in schemas[0].items()}


def _differ(kind: tuple[str, int | None], other: tuple[str, int | None]) -> bool:
    return kind[1] != other[1] or (kind[0] != other[0] and _MISSING not in (kind[0], other[0]))


def _check_schemas(
    name: str, schemas: Sequence[Schema], of_train: Schema, boosting: Boosting
) -> None:
    if empty := [rank for rank, schema in enumerate(schemas) if not schema]:
        raise ConfigError(
            f"dataset {name!r} has no rows on ranks {empty[:10]} of {len(schemas)}: it has fewer "
            f"rows than ranks. Use fewer workers, or more rows."
        )
    boosting.check_columns(name, schemas[0])
    for rank, schema in enumerate(schemas):
        if schema == of_train:
            continue
        where = f"dataset {name!r} on rank {rank}"
        check_same_columns(where, schema, of_train)
        for column in sorted(schema):
            if _differ(schema[column], of_train[column]):
                raise ConfigError(
                    f"{where} holds {_said(schema[column])} in column {column!r}, but 'train' "
                    f"holds {_said(of_train[column])} there. Give both the same type."
                )
    for column in boosting.categorical_columns:
        kind, width = of_train[column]
        if kind == _LISTS or width is not None:
            raise ConfigError(
                f"categorical_columns has {column!r}, which holds {_said((kind, width))}: a "
                f"category is one text or number. Leave it out, or encode it with a preprocessor."
            )


def _said(kind: tuple[str, int | None]) -> str:
    return kind[0] if kind[1] is None else f"{kind[0]} of width {kind[1]}"


def _categories(
    reader: ShardReader, first: Mapping[str, Any], boosting: Boosting, comm: Communicator
) -> dict[str, tuple[Any, ...]]:
    """Return the values of categorical columns, over all ranks. Collective."""
    columns = [
        name
        for name, values in first.items()
        if name not in boosting.no_features
        and (
            name in boosting.categorical_columns
            or name in reader.categories
            or is_categorical(values)
        )
    ]
    if not columns:
        return {}
    values: dict[str, dict[Any, None]] = {
        name: dict.fromkeys(reader.categories.get(name, ())) for name in columns
    }
    for batch in reader.batches():
        for name in columns:
            values[name].update(dict.fromkeys(distinct(batch[name])))
    ranks = comm.allgather({name: list(known) for name, known in values.items()})
    merged = {name: [v for rank in ranks for v in rank[name]] for name in columns}
    for name, found in merged.items():
        if (other := next((value for value in found if not _is_plain(value)), None)) is not None:
            raise ConfigError(
                f"column {name!r} has categories of type {type(other).__name__}, such as "
                f"{str(other)!r}, but a checkpoint stores texts and numbers. Convert the column: "
                f".astype(str), or .cat.codes."
            )
    return {name: sorted_values(found) for name, found in merged.items()}
