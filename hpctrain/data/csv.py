"""CSV files, by blocks of lines."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np

from hpctrain.checks import shown
from hpctrain.data.arguments import list_of_names, mapping, number_type
from hpctrain.data.arrow_batches import column_type, from_arrow
from hpctrain.data.batch import Batch
from hpctrain.data.conform import conform, empty
from hpctrain.data.files import Paths, describe_all, find_files
from hpctrain.data.formats import as_column
from hpctrain.data.large_integers import (
    are_integers,
    check_not_rounded,
    has_large_floats,
    integers_of_decimals,
)
from hpctrain.data.object_bytes import OVERHEAD_BYTES
from hpctrain.data.optional import require
from hpctrain.data.schema import Column, Schema, check_columns, check_unique
from hpctrain.data.source import Blocks, Source
from hpctrain.data.together import concatenate_sources
from hpctrain.errors import ConfigError

SUFFIXES = (".csv", ".tsv", ".txt")

BLOCK_BYTES = 8 * 2**20

_ARROW_BLOCK_BYTES = 2**20


@dataclass(frozen=True, kw_only=True)
class CsvSource:
    """The lines of a CSV file."""

    path: str
    names: tuple[str, ...]
    """All columns of the file."""
    delimiter: str
    offsets: tuple[int, ...]
    """Byte offsets at which blocks of lines begin, and at which the last one ends."""
    lines: tuple[int, ...]
    """Lines of each block."""
    schema: Schema
    header: bytes = b""
    """The line of names, if the file has one."""
    parsed_as: tuple[tuple[str, str], ...] = ()
    """Columns whose type in the file is not that in batches, and Arrow's name of the file's type:
    integers and bools with missing values, times with a time zone, integers beyond 64 bits. Also
    columns that were guessed to be floats: these must not round an integer."""

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return sum(self.lines)

    @property
    def unit_rows(self) -> int:
        """Rows of the largest block."""
        return max(self.lines, default=1)

    @cached_property
    def _starts(self) -> list[int]:
        return [0, *accumulate(self.lines)]

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is computed from the rest."""
        return {name: value for name, value in vars(self).items() if name != "_starts"}

    def files(self) -> list[str]:
        """Return the file. Not collective."""
        return [self.path]

    def blocks(self) -> Blocks:
        """Return the blocks of lines. Not collective."""
        return Blocks([(rows, rows) for rows in self.lines])

    def read(self, rows: range, columns: Sequence[str] | None) -> Batch:
        """Return rows, in order. Not collective."""
        schema = self.schema.select(columns)
        if not rows:
            return empty(schema)
        first = bisect_right(self._starts, rows.start) - 1
        last = bisect_right(self._starts, rows.stop - 1) - 1
        with open(self.path, "rb") as file:
            if (size := os.fstat(file.fileno()).st_size) != self.offsets[-1]:
                raise self._changed(f"it has {size} bytes, and had {self.offsets[-1]}")
            if (header := file.read(len(self.header))) != self.header:
                raise self._changed(f"its first line is {header!r}, and was {self.header!r}")
            # Read the byte before too: a block holds whole lines, so it must be a line break.
            before = min(1, self.offsets[first])
            file.seek(self.offsets[first] - before)
            end_before = file.read(before)
            content = file.read(self.offsets[last + 1] - self.offsets[first])
        if end_before not in (b"", b"\n"):
            raise self._changed(f"no line begins at byte {self.offsets[first]} any more")
        table = self._parse(content, {n: c.dtype for n, c in schema.items()})
        expected = self._starts[last + 1] - self._starts[first]
        if table.num_rows != expected:
            raise ConfigError(
                f"{self.path}: {expected} lines hold {table.num_rows} rows. The file has empty "
                f"lines or line breaks inside values, or has changed. Write it again without them, "
                f"or as Parquet, and make the dataset again."
            )
        where = f"{self.path}, rows {rows.start} to {rows.stop}"
        table = table.slice(rows.start - self._starts[first], len(rows))
        found = from_arrow(table, objects=schema.objects)
        for name, kind in self.parsed_as:
            if name in schema and kind == _INTEGERS:
                found[name] = integers_of_decimals(found[name])
            elif name in schema and kind == _FLOATS and has_large_floats(table.column(name)):
                texts = self._parse(content, {name: np.dtype(object)}).column(name)
                check_not_rounded(texts, name, where=where)
        return conform(found, schema, where=where, advice="Name its type with dtypes={...}.")

    def _parse(self, content: bytes, dtypes: Mapping[str, np.dtype]) -> Any:
        in_file = {n: k for n, k in self.parsed_as if dtypes.get(n) == self.schema[n].dtype}
        return parse(content, self.path, self.names, self.delimiter, dtypes, parsed_as=in_file)

    def _changed(self, what: str) -> ConfigError:
        return ConfigError(
            f"{self.path} has changed since the dataset was made: {what}. Make the dataset again."
        )


def open_csv(
    paths: Paths,
    *,
    columns: Sequence[str] | None,
    dtypes: Mapping[str, Any],
    delimiter: Any,
    names: Sequence[str] | None,
) -> Source:
    """Return the lines of CSV files. Not collective.

    Raises
    ------
    ConfigError
        If a file is missing, cannot be parsed, or files have different columns.
    """
    require("pyarrow.csv", to="to read CSV files")
    wanted = {
        name: number_type(f"dtypes[{name!r}]", dtype)
        for name, dtype in mapping("dtypes", dtypes, example="{'x': 'float32'}").items()
    }
    if not isinstance(delimiter, str) or len(delimiter) != 1 or not delimiter.isascii():
        raise ConfigError(
            f"delimiter={shown(delimiter)} is not a character. Give one, such as ',' or '\\t'."
        )
    names = None if names is None else list_of_names("names", names)
    files = find_files(paths, SUFFIXES)
    at, first = 0, _describe(files[0], columns, wanted, {}, delimiter, names)
    while not first.num_rows and at + 1 < len(files):
        at += 1
        first = _describe(files[at], columns, wanted, {}, delimiter, names)
    try:
        check_columns(wanted, first.names)
    except ConfigError as error:
        raise ConfigError(f"dtypes={dict(dtypes)}, but in {first.path} {error}") from error
    # The other files are read with the types of the first one that has rows.
    known = {name: column.dtype for name, column in first.schema.items()}
    parsed_as = dict(first.parsed_as)

    def describe(path: str) -> CsvSource:
        return _describe(path, columns, known, parsed_as, delimiter, names)

    before, after = (describe_all(some, describe) for some in (files[:at], files[at + 1 :]))
    return concatenate_sources([*before, first, *after])


def parse(
    content: bytes,
    path: str,
    names: Sequence[str],
    delimiter: str,
    dtypes: Mapping[str, np.dtype],
    *,
    parsed_as: Mapping[str, str] | None = None,
    all_columns: bool = False,
) -> Any:
    """Return lines as an Arrow table. Not collective.

    Parameters
    ----------
    dtypes
        Columns that are read, and their types.
    parsed_as
        Those of them that have another type in the file, and Arrow's name of it.
    all_columns
        Whether to read the other columns too, with the types that Arrow guesses.

    Raises
    ------
    ConfigError
        If a value or a line does not fit.
    """
    pyarrow = require("pyarrow", to="to read CSV files")
    csv = require("pyarrow.csv", to="to read CSV files")
    types = {
        n: pyarrow.string() if d.kind in "OUS" else pyarrow.from_numpy_dtype(d)
        for n, d in dtypes.items()
    }
    for name, kind in (parsed_as or {}).items():
        if name in types and kind == _ZONED:
            types[name] = pyarrow.timestamp(types[name].unit, "UTC")
        elif name in types and kind == _INTEGERS:
            types[name] = pyarrow.decimal128(38, 0)
        elif name in types:
            types[name] = pyarrow.type_for_alias(kind)

    def read(block_bytes: int) -> Any:
        return csv.read_csv(
            pyarrow.BufferReader(content),
            csv.ReadOptions(column_names=list(names), use_threads=False, block_size=block_bytes),
            csv.ParseOptions(delimiter=delimiter),
            csv.ConvertOptions(
                column_types=types, include_columns=None if all_columns else list(dtypes)
            ),
        )

    try:
        try:
            return read(_ARROW_BLOCK_BYTES)
        except pyarrow.ArrowInvalid as error:
            if "straddling" not in str(error):
                raise
            # A line is longer than a block.
            return read(len(content) + 1)
    except pyarrow.ArrowInvalid as error:
        if "invalid UTF8" in str(error):
            raise _other_encoding(path, error) from error
        raise ConfigError(
            f"{path} cannot be read as CSV: {error}. If a column has another type than its first "
            f"lines have, name it with dtypes={{'column': 'float64'}}."
        ) from error


def _other_encoding(path: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"{path} cannot be read as CSV: {error}. Write it in UTF-8, for example with: iconv -f "
        f"LATIN1 -t UTF-8 OLD > NEW"
    )


def _describe(
    path: str,
    columns: Sequence[str] | None,
    dtypes: Mapping[str, np.dtype],
    parsed_as: Mapping[str, str],
    delimiter: str,
    names: Sequence[str] | None,
) -> CsvSource:
    with open(path, "rb") as file:
        header = b"" if names is not None else file.readline()
        start = len(header)
        found = tuple(names or _split_header(path, header, delimiter))
        head = file.read(BLOCK_BYTES)
        if b"\n" not in head:
            head += file.readline()
        head = head[: head.rfind(b"\n") + 1] or head
        offsets, lines = _find_blocks(file, start)
    try:
        check_unique(found)
        check_columns(columns if columns is not None else found, found)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    # Arrow detects whether times have a zone.
    known = {name: dtype for name, dtype in dtypes.items() if dtype.kind != "M"}

    def parse_head(types: Mapping[str, np.dtype], kinds: Mapping[str, str]) -> Any:
        types, kinds = {**known, **types}, {**parsed_as, **kinds}
        return parse(head, path, found, delimiter, types, parsed_as=kinds, all_columns=True)

    table = parse_head({}, {}) if head else None
    described = []
    in_file = {name: kind for name, kind in parsed_as.items() if kind != _ZONED}
    for name in columns if columns is not None else found:
        dtype = dtypes.get(name)
        column = None if table is None else table.column(name)
        if dtype is None and column is not None:
            column = _not_rounded(column, name, path, parse_head)
            dtype, kind = _guessed(column)
            in_file |= {} if kind is None else {name: kind}
        dtype = np.dtype(object) if dtype is None or dtype.kind in "US" else dtype
        size = _bytes_of_value(column) if dtype.hasobject and column is not None else 0
        described.append((name, Column(dtype=dtype, object_bytes=size)))
        if dtype.kind == "M" and getattr(getattr(column, "type", None), "tz", None) is not None:
            in_file[name] = _ZONED
    return CsvSource(
        path=path,
        names=found,
        delimiter=delimiter,
        offsets=offsets,
        lines=lines,
        schema=Schema(tuple(described)),
        header=header,
        parsed_as=tuple(in_file.items()),
    )


_ZONED = "zoned"
_INTEGERS = "integers"
_FLOATS = "double"


def _not_rounded(
    column: Any,
    name: str,
    path: str,
    parse_head: Callable[[Mapping[str, np.dtype], Mapping[str, str]], Any],
) -> Any:
    """Return a column whose type Arrow has guessed, with large integers as they are in the file."""
    if has_large_floats(column):
        # Arrow guesses int64, else float64, but never uint64 or larger integers.
        with suppress(ConfigError):
            column = parse_head({name: np.dtype("u8")}, {}).column(name)
    if has_large_floats(column):
        as_texts = {name: np.dtype(object)}
        texts = parse_head(as_texts, {}).column(name)
        if are_integers(texts.filter(column.is_valid())):
            return parse_head(as_texts, {name: _INTEGERS}).column(name)
        check_not_rounded(texts, name, where=path)
    return column


def _bytes_of_value(column: Any) -> int:
    return int(column.nbytes) // max(len(column), 1) + OVERHEAD_BYTES


def _guessed(column: Any) -> tuple[np.dtype, str | None]:
    """Return the type of a column in batches, and Arrow's name of another one in the file."""
    dtype, _ = column_type(column.type)
    if dtype.kind == "f":
        return dtype, _FLOATS
    if str(column.type).startswith("decimal"):
        return dtype, _INTEGERS
    if column.null_count and dtype.kind in "iub":
        # The type that the same column of a Parquet file gets.
        return as_column(column).dtype, str(column.type)
    return dtype, None


def _split_header(path: str, header: bytes, delimiter: str) -> list[str]:
    if not header.strip():
        raise ConfigError(f"{path} is empty: it has not even a line of column names.")
    if b"\r" in header.rstrip(b"\r\n"):
        raise ConfigError(
            f"{path}: lines end with a carriage return alone, or a name has one in it. Write lines "
            f"that end with \\n, for example with: tr '\\r' '\\n' < OLD > NEW"
        )
    csv = require("pyarrow.csv", to="to read CSV files")
    pyarrow = require("pyarrow", to="to read CSV files")
    # Arrow does not read a last line without a line break.
    line = pyarrow.BufferReader(header.rstrip(b"\r\n") + b"\n")
    table = csv.read_csv(line, parse_options=csv.ParseOptions(delimiter=delimiter))
    try:
        return list(table.column_names)
    except UnicodeDecodeError as error:
        raise _other_encoding(path, error) from error


def _find_blocks(file: Any, start: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return where blocks of whole lines begin, and how many nonempty lines each has."""
    file.seek(start)
    offsets, lines, at, before = [start], [], start, b"\n\n"
    while chunk := file.read(BLOCK_BYTES):
        if end := chunk.rfind(b"\n") + 1:
            lines.append(_count_lines(before + chunk[:end]))
            offsets.append(at + end)
        at += len(chunk)
        before = (before + chunk)[-2:]
    if before[-1:] != b"\n":
        lines.append(1)
        offsets.append(at)
    return tuple(offsets), tuple(lines)


def _count_lines(content: bytes) -> int:
    """Return the number of line ends after the first two bytes, without those of empty lines."""
    codes = np.frombuffer(content, np.uint8)
    is_end = codes == ord("\n")
    after_end = is_end[1:-1] | ((codes[1:-1] == ord("\r")) & is_end[:-2])
    return int(np.count_nonzero(is_end[2:] & ~after_end))
