"""Metrics of a report as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hpctrain.errors import ConfigError


def encode_metrics(metrics: Mapping[str, Any]) -> bytes:
    """Return metrics as JSON. Not collective.

    Raises
    ------
    ConfigError
        If they are not a mapping, or hold what JSON has no form for: tensors and arrays.
    """
    if not isinstance(metrics, dict):
        raise ConfigError(
            f"report({metrics!r}): metrics are a dict of names and numbers, and this is a "
            f"{type(metrics).__name__}. For example: report({{'loss': 0.1}})."
        )
    try:
        return _encode(metrics).encode()
    except (TypeError, ValueError) as error:
        raise ConfigError(f"report(): {error}") from error


def _encode_other(value: Any) -> Any:
    """Give JSON the numbers of NumPy; refuse what would have to be copied from a device."""
    kind = type(value)
    if kind.__module__ == "numpy" and getattr(value, "shape", None) == ():
        return value.item()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(
        f"metrics hold {value!r:.80} of type {kind.__module__}.{kind.__qualname__}. Metrics are "
        f"numbers, strings, lists and dicts: use .item() or .tolist()."
    )


_encode = json.JSONEncoder(separators=(",", ":"), default=_encode_other, check_circular=True).encode
