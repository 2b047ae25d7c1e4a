"""Parquet files, by row group."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from typing import Any

import numpy as np

from hpctrain.data.arrow_batches import categories_of_arrow, column_type, from_arrow
from hpctrain.data.batch import Batch
from hpctrain.data.categories import Categories, categories_of, union, with_categories
from hpctrain.data.conform import conform, empty
from hpctrain.data.files import Paths, describe_all
from hpctrain.data.object_bytes import OVERHEAD_BYTES
from hpctrain.data.open_files import OpenFiles
from hpctrain.data.optional import require
from hpctrain.data.partitions import Keys, find_partitions, key_types
from hpctrain.data.schema import Column, Schema, check_columns, check_unique
from hpctrain.data.source import Blocks, Source
from hpctrain.data.together import concatenate_sources
from hpctrain.data.types import EXACT, cast_exactly
from hpctrain.errors import ConfigError

MOST_CATEGORIES = 2**16
"""Of a column; they are pickled with the dataset. A column of more has plain values."""

SUFFIXES = (".parquet", ".pq", ".parq")

_REWRITE = "An array is missing in a row, or the file has changed; write it again."


@dataclass(frozen=True, kw_only=True)
class ParquetSource:
    """The rows of a Parquet file."""

    path: str
    groups: tuple[tuple[int, int], ...]
    """Runs of row groups of equal size: rows of a group (may be 0), and number of groups."""
    schema: Schema
    keys: Keys = ()
    """Columns of the schema that are not in the file, and the one value of each."""

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return sum(rows * count for rows, count in self.groups)

    @property
    def unit_rows(self) -> int:
        """Rows of the largest row group."""
        return max((rows for rows, _ in self.groups), default=0) or 1

    def files(self) -> list[str]:
        """Return the file. Not collective."""
        return [self.path]

    def blocks(self) -> Blocks:
        """Return the row groups. Not collective."""
        return Blocks([(rows * count, rows) for rows, count in self.groups])

    def read(self, rows: range, columns: Sequence[str] | None) -> Batch:
        """Return rows, in order. Not collective.

        Row groups are read whole: read as many rows at once as you can.
        """
        schema = self.schema.select(columns)
        if not rows:
            return empty(schema)
        keys = dict(self.keys)
        batch = {n: np.full(len(rows), keys[n], c.dtype) for n, c in schema.items() if n in keys}
        if in_file := [name for name in schema if name not in keys]:
            batch |= self._read(rows, in_file)
        batch = conform(
            batch,
            schema,
            where=f"{self.path}, rows {rows.start} to {rows.stop}",
            advice=_REWRITE,
        )
        return {name: array.view(schema[name].dtype) for name, array in batch.items()}

    def _read(self, rows: range, columns: list[str]) -> Batch:
        sizes = [size for size, count in self.groups for _ in range(count)]
        starts = [0, *accumulate(sizes)]
        first = bisect_right(starts, rows.start) - 1
        last = bisect_right(starts, rows.stop - 1) - 1
        try:
            with _open_files.use(self.path) as file:
                self._check_groups(file.metadata, range(first, last + 1), sizes)
                table = file.read_row_groups(
                    list(range(first, last + 1)), columns=columns, use_threads=False
                )
        except OSError as error:
            raise ConfigError(_unreadable(self.path, error)) from error
        except ValueError as error:
            # Arrow's ArrowInvalid. Some versions of Arrow accept a missing array.
            raise ConfigError(
                f"{self.path}, rows {rows.start} to {rows.stop}: {str(error).rstrip('.')}. "
                f"{_REWRITE}"
            ) from error
        table = table.slice(rows.start - starts[first], len(rows))
        return from_arrow(table, objects=self.schema.objects)

    def _check_groups(self, footer: Any, numbers: range, sizes: Sequence[int]) -> None:
        """Check that a file has the row groups that it had when its dataset was made."""
        same_totals = footer.num_row_groups == len(sizes) and footer.num_rows == sum(sizes)
        if same_totals and all(footer.row_group(i).num_rows == sizes[i] for i in numbers):
            return
        raise ConfigError(
            f"{self.path} has changed since the dataset was made: it has {footer.num_rows} rows in "
            f"{footer.num_row_groups} row groups, and had {sum(sizes)} in {len(sizes)}. Make the "
            f"dataset again."
        )


def open_parquet(paths: Paths, *, columns: Sequence[str] | None) -> Source:
    """Return the rows of Parquet files. Not collective.

    Raises
    ------
    ConfigError
        If a file is missing or damaged, or files have different columns.
    """
    require("pyarrow.parquet", to="to read Parquet files")
    files = find_partitions(paths, SUFFIXES)
    keys, types = dict(files), key_types([of_file for _, of_file in files])
    found = describe_all(
        [path for path, _ in files], lambda path: _describe(path, columns, keys[path], types)
    )
    missing = frozenset().union(*(names for _, names, _ in found))
    # Files without statistics of an integer column that misses values in another file.
    unknown = [s.path for s, _, large in found if any(large.get(n, 0) is None for n in missing)]
    large_there = describe_all(unknown, lambda path: _large_of(path, missing))
    large = {name for _, _, of_file in found for name, is_large in of_file.items() if is_large}
    large.update(*large_there)
    categories = _shared_categories([source for source, _, _ in found])
    return concatenate_sources(
        [
            replace(s, schema=_with_room(s.schema, missing, frozenset(large), categories))
            for s, _, _ in found
        ]
    )


def _large_of(path: str, names: Iterable[str]) -> frozenset[str]:
    with _open(path) as file:
        leaves = _leaves(file.metadata)
        return frozenset(name for name in names if _has_large(file, name, leaves, may_read=True))


def _describe(
    path: str, columns: Sequence[str] | None, keys: Keys, key_types: Mapping[str, np.dtype]
) -> tuple[ParquetSource, frozenset[str], dict[str, bool | None]]:
    """Return a file, its columns with missing values, and whether integer columns have large ones.

    None means unknown without reading the column.
    """
    with _open(path) as file:
        return _describe_open(path, file, columns, keys, key_types)


def _describe_open(
    path: str,
    file: Any,
    columns: Sequence[str] | None,
    keys: Keys,
    key_types: Mapping[str, np.dtype],
) -> tuple[ParquetSource, frozenset[str], dict[str, bool | None]]:
    footer, arrow = file.metadata, file.schema_arrow
    in_file = {field.name: field.type for field in arrow}
    # A column of the file takes precedence over the name of its directory.
    keys = tuple((name, value) for name, value in keys if name not in in_file)
    there = [*arrow.names, *(name for name, _ in keys)]
    names = there if columns is None else columns
    try:
        check_unique(arrow.names)
        check_columns(names, there)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    types = [
        column_type(in_file[name]) if name in in_file else (key_types[name], ()) for name in names
    ]
    schema = Schema(
        tuple((n, Column(dtype=t[0], shape=t[1])) for n, t in zip(names, types, strict=True))
    )
    schema = _with_sizes(schema, footer)
    schema = _with_categories(
        schema,
        {n: _read_categories(file, n, in_file[n]) for n in names if n in in_file},
    )
    sizes = [footer.row_group(i).num_rows for i in range(footer.num_row_groups)]
    source = ParquetSource(
        path=path,
        groups=tuple((rows, len(list(same))) for rows, same in groupby(sizes)),
        schema=schema,
        keys=tuple((name, value) for name, value in keys if name in schema),
    )
    leaves = _leaves(footer)
    missing = frozenset(
        name
        for name, c in schema.items()
        if c.dtype.kind in "iub" and _has_missing(file, name, leaves)
    )
    large = {
        name: _has_large(file, name, leaves, may_read=name in missing)
        for name, c in schema.items()
        if c.dtype.kind in "iu" and c.dtype.itemsize == 8
    }
    return source, missing, large


def _with_sizes(schema: Schema, footer: Any) -> Schema:
    """Return a schema with about the size of objects: that of the first row group that has rows."""
    groups = (footer.row_group(number) for number in range(footer.num_row_groups))
    if not schema.objects or (group := next((g for g in groups if g.num_rows), None)) is None:
        return schema
    sizes: dict[str, int] = {}
    for at in range(group.num_columns):
        chunk = group.column(at)
        path = chunk.path_in_schema
        name = path if path in schema else path.partition(".")[0]
        sizes[name] = sizes.get(name, 0) + chunk.total_uncompressed_size

    def sized(name: str, column: Column) -> Column:
        size = sizes.get(name, 0) // group.num_rows + OVERHEAD_BYTES
        return replace(column, object_bytes=size) if column.dtype.hasobject else column

    return Schema(tuple((name, sized(name, column)) for name, column in schema.items()))


def _with_room(
    schema: Schema,
    missing: frozenset[str],
    large: frozenset[str],
    categories: Mapping[str, Categories | None],
) -> Schema:
    """Return a schema that can hold missing values: large integers and bools become objects."""

    def room(name: str, column: Column) -> Column:
        is_object = column.dtype.kind == "b" or name in large
        return replace(column, dtype=np.dtype(object if is_object else np.float64))

    roomy = Schema(tuple((n, room(n, c) if n in missing else c) for n, c in schema.items()))
    return _with_categories(roomy, categories)


def _with_categories(schema: Schema, categories: Mapping[str, Categories | None]) -> Schema:
    return Schema(
        tuple(
            (n, replace(c, dtype=with_categories(c.dtype, categories.get(n))))
            for n, c in schema.items()
        )
    )


def _shared_categories(sources: Sequence[ParquetSource]) -> dict[str, Categories | None]:
    """Return the categories of each column over all files that have rows."""
    filled = [source for source in sources if source.num_rows]
    names = {name for source in filled for name in source.schema}
    dtypes = {n: [s.schema[n].dtype for s in filled if n in s.schema] for n in names}
    return {name: union([*map(categories_of, found)]) for name, found in dtypes.items()}


def _read_categories(file: Any, name: str, kind: Any) -> Categories | None:
    """Return the categories of an Arrow dictionary column, over all row groups.

    A file stores them with the values, so this reads the column.
    """
    pyarrow = require("pyarrow", to="to read Parquet files")
    if not pyarrow.types.is_dictionary(kind):
        return None
    found = []
    for number in range(file.metadata.num_row_groups):
        if file.metadata.row_group(number).num_rows:
            column = file.read_row_group(number, [name], use_threads=False).column(0)
            found.append(categories_of_arrow(column))
            if found[-1] is None or len(found[-1].values) > MOST_CATEGORIES:
                return None
    categories = union(found) if found else None
    return None if categories is None or len(categories.values) > MOST_CATEGORIES else categories


def _leaves(footer: Any) -> dict[str, int]:
    """Return the number of each column without columns below it, by its path."""
    schema = footer.schema
    return {schema.column(number).path: number for number in range(footer.num_columns)}


def _has_large(file: Any, name: str, leaves: Mapping[str, int], *, may_read: bool) -> bool | None:
    """Return whether a column has integers that are not exact as floats; None if unknown."""
    footer = file.metadata
    if name not in leaves:
        return False
    is_known = True
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        statistics = group.column(leaves[name]).statistics
        if statistics is not None and statistics.has_min_max:
            if statistics.max > EXACT or statistics.min < -EXACT:
                return True
        elif may_read and group.num_rows:
            values = file.read_row_group(number, [name], use_threads=False).column(0).drop_null()
            if cast_exactly(values.to_numpy(), np.dtype(np.float64)) is None:
                return True
        elif group.num_rows:
            is_known = False
    return False if is_known else None


def _has_missing(file: Any, name: str, leaves: Mapping[str, int]) -> bool:
    """Return whether a column of plain values misses some; read it if statistics are lacking."""
    footer = file.metadata
    if name not in leaves or footer.schema.column(leaves[name]).max_definition_level == 0:
        return False
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        statistics = group.column(leaves[name]).statistics
        known = statistics is not None and statistics.has_null_count
        if known:
            missing = statistics.null_count
        elif group.num_rows:
            missing = file.read_row_group(number, [name], use_threads=False).column(0).null_count
        else:
            continue
        if missing:
            return True
    return False


def _open(path: str) -> Any:
    parquet = require("pyarrow.parquet", to="to read Parquet files")
    try:
        return parquet.ParquetFile(path)
    except (OSError, ValueError) as error:
        raise ConfigError(_unreadable(path, error)) from error


def _unreadable(path: str, error: Exception) -> str:
    reason = str(error).rstrip(".")
    return (
        f"{path} cannot be read as Parquet: {reason}. It is damaged, truncated or in another "
        f"format; write it again."
    )


_open_files = OpenFiles(_open)
