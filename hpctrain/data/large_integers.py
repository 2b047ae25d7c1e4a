"""Integers in text files that Arrow reads as floats, which would round them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from hpctrain.data.batch import Batch
from hpctrain.data.operations.items import batch_of_rows
from hpctrain.data.optional import require
from hpctrain.data.types import EXACT, array_of
from hpctrain.errors import ConfigError

_LONG = re.compile(rb"(?<![\d.])\d{16,}(?![\d.eE])")
"""An integer that may be beyond 2**53, in JSON."""


def has_large_floats(column: Any) -> bool:
    """Return whether an Arrow column is of floats that may be rounded integers.

    Not collective.
    """
    pyarrow = require("pyarrow", to="to read text files")
    if not pyarrow.types.is_floating(column.type):
        return False
    return bool((np.abs(column.drop_null().to_numpy()) >= EXACT).any())


def are_integers(texts: Any) -> bool:
    """Return whether each text of an Arrow column is an integer, and floats round one of them.

    Not collective.
    """
    compute = require("pyarrow.compute", to="to read CSV files")
    is_integer = compute.match_substring_regex(texts, r"^\s*[+-]?\d+\s*$")
    return bool(compute.all(is_integer).as_py()) and _rounded(texts) is not None


def check_not_rounded(texts: Any, name: str, *, where: str) -> None:
    """Check that float64 represents each integer among the texts of an Arrow column.

    Not collective.

    Parameters
    ----------
    name
        Of the column.
    where
        Of which file and rows it is, for the message.

    Raises
    ------
    ConfigError
        If it would round one.
    """
    if (text := _rounded(texts)) is not None:
        raise ConfigError(
            f"{where}: column {name!r} has fractions, and {text}, which float64 would round. Name "
            f"its type: with dtypes={{{name!r}: object}} it is text; 'float64' rounds."
        )


def _rounded(texts: Any) -> str | None:
    """Return the first text that is an integer that float64 cannot represent."""
    compute = require("pyarrow.compute", to="to read CSV files")
    long = texts.filter(compute.match_substring_regex(texts, r"^\s*[+-]?\d{16,}\s*$"))
    return next((text.strip() for text in long.to_pylist() if int(text) != float(text)), None)


def integers_of_decimals(column: np.ndarray) -> np.ndarray:
    """Return decimals without fractions as Python's integers; None stays None. Not collective."""
    values = [None if value is None else int(value) for value in column.tolist()]
    return np.array([*values, None], dtype=object)[:-1]


def integers_of_json(path: str, table: Any) -> Batch:
    """Return the columns of lines of JSON in which Arrow may have rounded integers.

    Not collective. Python's parser, which is slow, reads them, only if there is such an integer.
    """
    names = [
        name
        for name in table.column_names
        if has_large_floats(table.column(name)) or _is_nested_float(table.column(name).type)
    ]
    if not names:
        return {}
    pyarrow = require("pyarrow", to="to read JSON files")
    # Arrow decompresses a file by the end of its name.
    with pyarrow.input_stream(path) as file:
        content = file.read()
    if not _LONG.search(content):
        return {}
    rows = list(_objects(content.decode("utf-8-sig")))
    nested = {n for n in names if _is_nested_float(table.column(n).type)}
    batch = batch_of_rows([{n: row.get(n) for n in names if n not in nested} for row in rows])
    return batch | {name: _nested([row.get(name) for row in rows]) for name in nested}


def _is_nested_float(kind: Any) -> bool:
    pyarrow = require("pyarrow", to="to read JSON files")
    return pyarrow.types.is_nested(kind) and "double" in str(kind)


def _objects(text: str) -> Iterator[dict[str, Any]]:
    decoder, end = json.JSONDecoder(strict=False), 0
    while match := _NOT_SPACE.search(text, end):
        row, end = decoder.raw_decode(text, match.start())
        yield row


_NOT_SPACE = re.compile(r"\S")


def _nested(values: list[Any]) -> np.ndarray:
    """Return lists as arrays, and mappings, in an array of objects."""
    column = np.empty(len(values), dtype=object)
    column[:] = [array_of(value) if isinstance(value, list) else value for value in values]
    return column
