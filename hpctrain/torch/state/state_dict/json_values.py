"""What of a state is no tensor, as JSON: types that JSON lacks are kept, and nothing is pickled."""

from __future__ import annotations

import base64
from collections import Counter
from typing import TYPE_CHECKING, Any

from hpctrain.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    import numpy as np

# A dict with only this key and "value" stands for a value of another type.
_TYPE = "$type"
_COLLECTIONS: dict[str, Any] = {"tuple": tuple, "set": set, "frozenset": frozenset}


def encode(value: Any, *, name: str) -> Any:
    """Return a value as JSON that `decode` makes the same value of. Not collective.

    Parameters
    ----------
    value
        Numbers, strings, bytes, None, lists, tuples, dicts, sets, NumPy arrays and scalars, types
        and devices of torch.
    name
        Where in the state it is, for errors.

    Raises
    ------
    ConfigError
        If it has another type.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, list):
        return [encode(item, name=f"{name}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, dict):
        return _encode_dict(value, name)
    for kind, collection in _COLLECTIONS.items():
        if isinstance(value, collection):
            items = [encode(item, name=f"{name}[{i}]") for i, item in enumerate(value)]
            return _typed(kind, items)
    if isinstance(value, bytes | bytearray):
        return _typed("bytes", base64.b64encode(value).decode())
    if isinstance(value, complex):
        return _typed("complex", [value.real, value.imag])
    return _encode_foreign(value, name)


def decode(encoded: Any) -> Any:
    """Return the value that `encode` was given. Not collective.

    Raises
    ------
    CheckpointError
        If it has a type that this version does not know.
    """
    if isinstance(encoded, list):
        return [decode(item) for item in encoded]
    if not isinstance(encoded, dict):
        return encoded
    if _TYPE not in encoded:
        return {key: decode(value) for key, value in encoded.items()}
    kind, value = encoded[_TYPE], encoded["value"]
    if kind in ("dict", "Counter"):
        pairs = {decode(key): decode(item) for key, item in value}
        return Counter(pairs) if kind == "Counter" else pairs
    if kind in _COLLECTIONS:
        return _COLLECTIONS[kind](map(decode, value))
    if kind == "bytes":
        return base64.b64decode(value)
    if kind == "complex":
        return complex(*value)
    if kind in ("array", "scalar"):
        array = _decode_array(value)
        return array[()] if kind == "scalar" else array
    if kind in ("dtype", "device"):
        import torch

        return getattr(torch, value) if kind == "dtype" else torch.device(value)
    raise CheckpointError(f"A value has the type {kind!r}. Use a newer hpctrain to read it.")


def _encode_dict(value: dict[Any, Any], name: str) -> Any:
    named = {key: item for key, item in value.items() if isinstance(key, str)}
    if len(named) == len(value) and _TYPE not in named and not isinstance(value, Counter):
        return {key: encode(item, name=f"{name}.{key}") for key, item in named.items()}
    pairs = [
        [encode(key, name=name), encode(item, name=f"{name}.{key}")] for key, item in value.items()
    ]
    return _typed("Counter" if isinstance(value, Counter) else "dict", pairs)


def _encode_foreign(value: Any, name: str) -> Any:
    import numpy as np
    import torch

    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufc":
        array = np.asarray(value)
        content = base64.b64encode(array.tobytes()).decode()
        kind = "array" if isinstance(value, np.ndarray) else "scalar"
        return _typed(kind, [array.dtype.str, list(array.shape), content])
    if isinstance(value, torch.dtype):
        return _typed("dtype", str(value).removeprefix("torch."))
    if isinstance(value, torch.device):
        return _typed("device", str(value))
    # Subclasses, an enum of integers for instance, lose their class.
    for plain in (int, float, str):
        if isinstance(value, plain):
            # What an enum calls itself is no part of its value.
            return str.__str__(value) if plain is str else plain(value)
    raise ConfigError(
        f"{name} is a {type(value).__module__}.{type(value).__qualname__}, which is neither a "
        f"tensor nor a value that can be saved without pickle: numbers, strings, bytes, None, "
        f"lists, tuples, dicts, sets and NumPy arrays can be. Leave it out, or give its "
        f"state_dict()."
    )


def _decode_array(value: Any) -> np.ndarray[Any, Any]:
    import numpy as np

    dtype, shape, content = value
    array = np.frombuffer(base64.b64decode(content), dtype=np.dtype(dtype)).reshape(shape)
    own: np.ndarray[Any, Any] = array.copy()
    return own


def _typed(kind: str, value: Any) -> dict[str, Any]:
    return {_TYPE: kind, "value": value}
