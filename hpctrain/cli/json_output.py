"""What ``--json`` prints: the schema of each verb, with a version, and how it is printed.

A field may be added; a removal, a rename or another meaning raises `FORMAT`, the version.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from hpctrain.cli.json_format import FORMAT


def all_fields() -> Mapping[str, Sequence[tuple[str, str, str]]]:
    """Return name, type and meaning of each field, by verb, and of the objects inside. Pure.

    Times are seconds since the epoch. A name with a question mark may be absent. ``list`` prints an
    array of them.
    """
    # A verb that only prints does without them.
    from hpctrain.cli.json_fields_of_reports import FIELDS_OF_REPORTS
    from hpctrain.cli.json_fields_of_runs import FIELDS_OF_RUNS

    return {**FIELDS_OF_RUNS, **FIELDS_OF_REPORTS}


def schema(verb: str) -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of what ``hpctrain VERB --json`` prints. Not collective.

    Examples
    --------
    >>> schema("note")["properties"]["what"]["type"]
    ['string']
    """
    described = _object(all_fields()[verb])
    return {"type": "array", "items": described} if verb == "list" else described


def _object(fields: Sequence[tuple[str, str, str]]) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": [name for name, _, _ in fields if not name.endswith("?")],
        "properties": {
            name.removesuffix("?"): {**_type(kind), "description": meaning}
            for name, kind, meaning in fields
        },
    }


def print_json(content: Any) -> None:
    """Print the output of a verb, with the version of its schema, on stdout.

    Numbers that are not finite become null (RFC 8259, section 6: JSON has none).
    """
    if isinstance(content, list):
        content = [{"format": FORMAT, **each} for each in content]
    else:
        content = {"format": FORMAT, **content}
    print(json.dumps(_finite(content), indent=2, default=str, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def stdout_on_stderr() -> Iterator[None]:
    """Send what this process and its children print to stderr: stdout may be JSON."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _type(kind: str) -> dict[str, Any]:
    known = all_fields()
    array, _, item = kind.partition("array of ")
    if not array and item:
        items = schema(item) if item in known else {"type": [item]}
        return {"type": ["array"], "items": items}
    return schema(kind) if kind in known else {"type": kind.split("|")}
