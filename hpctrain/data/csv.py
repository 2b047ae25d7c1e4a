"""CSV files, by blocks of lines."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np

from hpctrain.data.conform import conform, empty
from hpctrain.data.files import Paths, describe_all, find_files
from hpctrain.data.formats import Batch, column_type, from_arrow
from hpctrain.data.optional import require
from hpctrain.data.schema import Column, Schema, check_columns, check_unique
from hpctrain.data.source import Blocks, Source
from hpctrain.data.together import concatenate_sources
from hpctrain.errors import ConfigError

SUFFIXES = (".csv", ".tsv", ".txt")

BLOCK_BYTES = 8 * 2**20


@dataclass(frozen=True, kw_only=True)
class CsvSource:
    """The lines of a CSV file."""

    path: str
    names: tuple[str, ...]
    """All columns of the file."""
    delimiter: str
    offsets: tuple[int, ...]
    """Bytes at which blocks of lines begin, and at which the last one ends."""
    lines: tuple[int, ...]
    """Lines of each block."""
    schema: Schema
    zoned: tuple[str, ...] = ()
    """Columns of times that are written with their zone."""

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
        """Leave out what follows from the rest."""
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
                raise ConfigError(
                    f"{self.path} has changed since the dataset was made: it has {size} bytes, and "
                    f"had {self.offsets[-1]}. Make the dataset again."
                )
            file.seek(self.offsets[first])
            content = file.read(self.offsets[last + 1] - self.offsets[first])
        table = parse(
            content,
            self.path,
            self.names,
            self.delimiter,
            {n: c.dtype for n, c in schema.items()},
            zoned=self.zoned,
        )
        expected = self._starts[last + 1] - self._starts[first]
        if table.num_rows != expected:
            raise ConfigError(
                f"{self.path} has {table.num_rows} rows where {expected} lines are: it has empty "
                f"lines or line breaks inside of values, or has changed. Write it again, or as "
                f"Parquet."
            )
        found = from_arrow(table.slice(rows.start - self._starts[first], len(rows)))
        where = f"{self.path}, rows {rows.start} to {rows.stop}"
        return conform(found, schema, where=where, advice="Name its type with dtypes={...}.")


def open_csv(
    paths: Paths,
    *,
    columns: Sequence[str] | None,
    dtypes: Mapping[str, Any],
    delimiter: str,
    names: Sequence[str] | None,
) -> Source:
    """Return the lines of CSV files. Not collective.

    Raises
    ------
    ConfigError
        If a file is missing, cannot be parsed, or files have unlike columns.
    """
    require("pyarrow.csv", to="to read CSV files")
    wanted = {name: np.dtype(dtype) for name, dtype in dtypes.items()}
    files = find_files(paths, SUFFIXES)
    first = _describe(files[0], columns, wanted, delimiter, names)
    try:
        check_columns(wanted, first.names)
    except ConfigError as error:
        raise ConfigError(f"dtypes={dict(dtypes)}, but in {files[0]} {error}") from error
    # What the first file looks like says how the others are read.
    known = {name: column.dtype for name, column in first.schema.items()}
    others = describe_all(files[1:], lambda path: _describe(path, columns, known, delimiter, names))
    return concatenate_sources([first, *others])


def parse(
    content: bytes,
    path: str,
    names: Sequence[str],
    delimiter: str,
    dtypes: Mapping[str, np.dtype],
    *,
    zoned: Sequence[str] = (),
    all_columns: bool = False,
) -> Any:
    """Return lines as an Arrow table. Not collective.

    Parameters
    ----------
    dtypes
        Columns that are read, and their types.
    zoned
        Columns of times that are written with their zone.
    all_columns
        Whether the others are read too, and their types are guessed.

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
    types |= {n: pyarrow.timestamp(types[n].unit, "UTC") for n in zoned if n in types}
    try:
        return csv.read_csv(
            pyarrow.BufferReader(content),
            csv.ReadOptions(column_names=list(names), use_threads=False),
            csv.ParseOptions(delimiter=delimiter),
            csv.ConvertOptions(
                column_types=types, include_columns=None if all_columns else list(dtypes)
            ),
        )
    except pyarrow.ArrowInvalid as error:
        raise ConfigError(
            f"{path} cannot be read as CSV: {error}. If a column has another type than its first "
            f"lines have, name it with dtypes={{'column': 'float64'}}."
        ) from error


def _describe(
    path: str,
    columns: Sequence[str] | None,
    dtypes: Mapping[str, np.dtype],
    delimiter: str,
    names: Sequence[str] | None,
) -> CsvSource:
    with open(path, "rb") as file:
        header = b"" if names is not None else file.readline()
        start = len(header)
        found = tuple(names or _split_header(path, header, delimiter))
        head = file.read(BLOCK_BYTES)
        head = head[: head.rfind(b"\n") + 1] or head
        offsets, lines = _find_blocks(file, start)
    try:
        check_unique(found)
        check_columns(columns if columns is not None else found, found)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    # Whether times have a zone is for Arrow to find out.
    known = {name: dtype for name, dtype in dtypes.items() if dtype.kind != "M"}
    table = parse(head, path, found, delimiter, known, all_columns=True) if head else None
    described = []
    for name in columns if columns is not None else found:
        dtype = dtypes.get(name)
        if dtype is None:
            dtype = _guessed(table.column(name)) if table is not None else np.dtype(object)
        described.append((name, Column(dtype=np.dtype(object) if dtype.kind in "US" else dtype)))
    return CsvSource(
        path=path,
        names=found,
        delimiter=delimiter,
        offsets=offsets,
        lines=lines,
        schema=Schema(tuple(described)),
        zoned=tuple(
            name
            for name, column in described
            if table is not None
            and column.dtype.kind == "M"
            and getattr(table.column(name).type, "tz", None) is not None
        ),
    )


def _guessed(column: Any) -> np.dtype:
    dtype, _ = column_type(column.type)
    if column.null_count and dtype.kind in "iub":
        return np.dtype(object) if dtype.kind == "b" else np.dtype(np.float64)
    return dtype


def _split_header(path: str, header: bytes, delimiter: str) -> list[str]:
    if not header.strip():
        raise ConfigError(f"{path} is empty: it has not even a line of column names.")
    csv = require("pyarrow.csv", to="to read CSV files")
    pyarrow = require("pyarrow", to="to read CSV files")
    # To Arrow a line without its end is none.
    line = pyarrow.BufferReader(header.rstrip(b"\r\n") + b"\n")
    table = csv.read_csv(line, parse_options=csv.ParseOptions(delimiter=delimiter))
    return list(table.column_names)


def _find_blocks(file: Any, start: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return where blocks of whole lines begin, and how many lines that are not empty each has."""
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
    """Return the ends of lines after the first two bytes, without those of empty lines."""
    codes = np.frombuffer(content, np.uint8)
    is_end = codes == ord("\n")
    after_end = is_end[1:-1] | ((codes[1:-1] == ord("\r")) & is_end[:-2])
    return int(np.count_nonzero(is_end[2:] & ~after_end))
