"""Types of Parquet columns that have no value at first: of type null, until one has."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hpctrain.data.optional import require
from hpctrain.errors import ConfigError
from hpctrain.own_files import name_beside
from hpctrain.rundir.files import fsync_file


def append_table(writer: Any, path: Path, table: Any) -> Any:
    """Append rows to a file, and return its writer: a new one if a column gets its type.

    Not collective.
    """
    pyarrow = require("pyarrow", to="to write Parquet files")
    schema = pyarrow.unify_schemas([writer.schema, table.schema])
    if schema != writer.schema:
        writer.close()
        beside = name_beside(path)
        writer = _copy(path, beside, schema)
        os.replace(beside, path)
    writer.write_table(_with_types(table, schema))
    return writer


def unify_parts(parts: Sequence[Path]) -> None:
    """Give columns of type null the type that they have in other parts, or text. Not collective.

    Raises
    ------
    ConfigError
        If parts have several types.
    """
    pyarrow = require("pyarrow", to="to write Parquet files")
    parquet = require("pyarrow.parquet", to="to write Parquet files")
    schemas = [parquet.read_schema(part) for part in parts]
    try:
        schema = pyarrow.unify_schemas(schemas)
    except pyarrow.ArrowException as error:
        raise ConfigError(
            f"the predictor returned columns of several types: {error}. All batches need the same "
            f"types: convert them, remove the parts in {parts[0].parent}, and predict again."
        ) from error
    for at, field in enumerate(schema):
        if pyarrow.types.is_null(field.type):
            schema = schema.set(at, field.with_type(pyarrow.string()))
    for part, found in zip(parts, schemas, strict=True):
        if found != schema:
            # A part that is done stays so until the new one is.
            beside = name_beside(part)
            _copy(part, beside, schema).close()
            fsync_file(beside)
            os.replace(beside, part)


def _copy(path: Path, to: Path, schema: Any) -> Any:
    """Copy a file, with the types of a schema, and return the copy's writer, still open."""
    parquet = require("pyarrow.parquet", to="to write Parquet files")
    writer = parquet.ParquetWriter(to, schema)
    with parquet.ParquetFile(path) as file:
        for group in range(file.num_row_groups):
            writer.write_table(_with_types(file.read_row_group(group), schema))
    return writer


def _with_types(table: Any, schema: Any) -> Any:
    """Return a table whose columns of type null have the types of a schema."""
    pyarrow = require("pyarrow", to="to write Parquet files")
    for at, field in enumerate(schema):
        if pyarrow.types.is_null(table.schema.field(at).type):
            table = table.set_column(at, field, pyarrow.nulls(len(table), field.type))
    return table
