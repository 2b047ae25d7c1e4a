"""Files that are read whole: JSON and text, a row for each item or line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from hpctrain.data.arrow_batches import from_arrow
from hpctrain.data.batch import Batch, num_rows, slice_batch
from hpctrain.data.conform import conform, empty
from hpctrain.data.files import Paths, describe_all, find_files
from hpctrain.data.large_integers import integers_of_json
from hpctrain.data.operations.derived import missing_rows, union_schema
from hpctrain.data.operations.items import batch_of_items
from hpctrain.data.optional import require
from hpctrain.data.schema import Column, Schema
from hpctrain.data.source import Blocks, Concatenated, Source
from hpctrain.data.types import are_floats
from hpctrain.errors import ConfigError

_ADVICE = "The file has changed, or the files have different types: write Parquet instead."
_BLOCK_BYTES = 16 * 2**20


class Load(Protocol):
    """Reads all rows of a file. A frozen value."""

    def __call__(self, path: str) -> Batch:
        """Return the rows. Not collective."""


@dataclass(frozen=True)
class LoadJson:
    """One JSON object per line, or one list of objects."""

    def __call__(self, path: str) -> Batch:
        """Return the rows. Not collective."""
        pyarrow = require("pyarrow", to="to read JSON files")
        reader = require("pyarrow.json", to="to read JSON files")
        size = os.path.getsize(path)
        for block in _block_sizes(path) if size else ():
            try:
                table = reader.read_json(path, reader.ReadOptions(block_size=block))
            except pyarrow.ArrowInvalid:
                continue
            return from_arrow(table) | integers_of_json(path, table)
        return _load_list(path) if size else {}


def _block_sizes(path: str) -> Iterator[int]:
    """Yield a size that suits most files, and then that of the content of this one."""
    yield _BLOCK_BYTES
    # Arrow refuses a row that is larger than a block.
    with _open(path) as file:
        size = sum(map(len, iter(lambda: file.read(_BLOCK_BYTES), b"")))
    yield min(size + 1, 2**31 - 1)


def _open(path: str) -> Any:
    """Open a file, and decompress it if its name ends as that of a compressed one."""
    return require("pyarrow", to="to read JSON files").input_stream(path, compression="detect")


def _load_list(path: str) -> Batch:
    with _open(path) as file:
        try:
            items = json.load(file)
        except ValueError as error:
            raise ConfigError(
                f"{path} is neither lines of JSON objects nor one JSON value: {error}. Write one "
                f"object per line, or one list of objects."
            ) from error
    return batch_of_items(items if isinstance(items, list) else [items])


@dataclass(frozen=True)
class LoadText:
    """Lines of text, the column ``text``."""

    encoding: str
    drop_empty_lines: bool

    def __call__(self, path: str) -> Batch:
        """Return the lines. Not collective."""
        with open(path, "rb") as file:
            content = file.read()
        try:
            lines = content.decode(self.encoding).split("\n")
        except (UnicodeDecodeError, LookupError) as error:
            raise ConfigError(
                f"{path} is not text in {self.encoding}: {error}. Name its encoding with encoding=."
            ) from error
        if self.drop_empty_lines:
            lines = [line for line in lines if line.strip()]
        return {"text": np.array([*lines, None], dtype=object)[:-1]}


@dataclass(frozen=True, kw_only=True)
class DocumentSource:
    """The rows of one file, which can only be read whole."""

    path: str
    num_rows: int
    schema: Schema
    load: Load

    @property
    def unit_rows(self) -> int:
        """All rows of the file."""
        return max(self.num_rows, 1)

    def files(self) -> list[str]:
        """Return its path. Not collective."""
        return [self.path]

    def blocks(self) -> Blocks:
        """Return the file as one block. Not collective."""
        return Blocks([(self.num_rows, self.num_rows)])

    def read(self, rows: range, columns: Sequence[str] | None) -> Batch:
        """Return rows, in order. Not collective."""
        schema = self.schema.select(columns)
        if not rows:
            return empty(schema)
        batch = self.load(self.path)
        found = num_rows(batch)
        if found != self.num_rows:
            raise ConfigError(
                f"{self.path} has changed since the dataset was made: it has {found} rows, and had "
                f"{self.num_rows}. Make the dataset again."
            )
        part = slice_batch(batch, rows.start, rows.stop)
        missing = {
            name: missing_rows(column, len(rows))
            for name, column in schema.items()
            if name not in part or _is_missing(part[name])
        }
        return conform(part | missing, schema, where=self.path, advice=_ADVICE)


def open_documents(paths: Paths, suffixes: Sequence[str], load: Load) -> Source:
    """Return the rows of files, one after another.

    Not collective. Each file is read now, to count its rows and find its types.

    Raises
    ------
    ConfigError
        If a file is missing or cannot be read, or a column has incompatible types.
    """
    files = find_files(paths, suffixes)
    described = describe_all(files, partial(_describe, load))
    schema = _schema_of_all([batch for rows, batch in described if rows] or [described[0][1]])
    parts = tuple(
        DocumentSource(path=path, num_rows=rows, schema=schema, load=load)
        for path, (rows, _) in zip(files, described, strict=True)
    )
    return parts[0] if len(parts) == 1 else Concatenated(parts=parts)


def _describe(load: Load, path: str) -> tuple[int, _Columns]:
    batch = load(path)
    found = {name: array for name, array in batch.items() if not _is_missing(array)}
    large = (n for n, a in found.items() if a.dtype.kind in "iu" and not are_floats(a))
    return num_rows(batch), _Columns(tuple(batch), Schema.of_read(found), frozenset(large))


def _is_missing(array: np.ndarray) -> bool:
    """Return whether no value shows the type of a column."""
    return array.dtype == object and all(value is None for value in array.reshape(-1))


@dataclass(frozen=True)
class _Columns:
    """The columns of a file."""

    names: tuple[str, ...]
    found: Schema
    """Those that have a value."""
    large: frozenset[str]
    """Those of integers that are not all exact as floats."""


def _schema_of_all(files: Sequence[_Columns]) -> Schema:
    """Return the columns of all files; those without a value in any of them are of objects."""
    found = union_schema([file.found for file in files])
    large = {name for file in files for name in file.large}
    objects = Column(dtype=np.dtype(object))
    names = dict.fromkeys(name for file in files for name in file.names)
    # Those of floats have integers that are missing in some files.
    rounded = {n for n in large if found[n].dtype.kind == "f"}
    return Schema(
        tuple((n, found[n] if n in found and n not in rounded else objects) for n in names)
    )
