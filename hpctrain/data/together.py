"""Several files as one dataset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hpctrain.data.schema import check_same_schema
from hpctrain.data.source import Concatenated, Source


def concatenate_sources(sources: Sequence[Any]) -> Source:
    """Return files of the same columns as one source.

    Not collective. Files share one `Schema` object, so that it is pickled once. Empty files are
    left out.

    Parameters
    ----------
    sources
        Frozen dataclasses that have ``path`` and ``schema``.

    Raises
    ------
    ConfigError
        If the columns of two files differ.
    """
    first = sources[0]
    for other in sources[1:]:
        check_same_schema(first.schema, first.path, other.schema, other.path)
    filled: list[Source] = [replace(s, schema=first.schema) for s in sources if s.num_rows]
    if not filled:
        return first  # type: ignore[no-any-return]
    return filled[0] if len(filled) == 1 else Concatenated(parts=tuple(filled))
