"""Compact pickles of datasets of thousands of files."""

from __future__ import annotations

import ast
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Packed:
    """Instances of one dataclass, by field."""

    kind: type
    count: int
    same: dict[str, Any]
    """Fields that are the same in all of them."""
    texts: dict[str, bytes]
    """The other fields, as compressed Python literals: equal values always give equal bytes."""


def pack(values: Sequence[Any]) -> Packed | None:
    """Return instances by field, or None if fields that differ are not numbers or texts.

    Not collective.
    """
    kind = type(values[0])
    if any(type(value) is not kind for value in values):
        return None
    same, texts = {}, {}
    for name in (field.name for field in fields(kind)):
        column = [getattr(value, name) for value in values]
        if all(value is column[0] or value == column[0] for value in column):
            same[name] = column[0]
        elif all(map(_is_literal, column)):
            texts[name] = zlib.compress(repr(column).encode())
        else:
            return None
    return Packed(kind=kind, count=len(values), same=same, texts=texts)


def unpack(packed: Packed) -> tuple[Any, ...]:
    """Return what `pack` was given. Not collective."""
    columns = {name: ast.literal_eval(_text(text)) for name, text in packed.texts.items()}
    return tuple(
        packed.kind(**packed.same, **{name: column[i] for name, column in columns.items()})
        for i in range(packed.count)
    )


def _text(compressed: bytes) -> str:
    return zlib.decompress(compressed).decode()


def _is_literal(value: Any) -> bool:
    if type(value) is tuple:
        return all(map(_is_literal, value))
    return value is None or type(value) in (str, int, bool)
