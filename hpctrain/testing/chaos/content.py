"""Whether two files of checkpoints hold the same values, even where their bytes differ.

Pickles of equal values can differ: a string that occurs twice is written once if it is the same
object, which it is no more after it was loaded. So files of torch and pickles are opened, and every
number in them is compared, bit by bit. This runs code that the files name: they are the user's own.
"""

from __future__ import annotations

import pickle
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def holds_the_same(one: Path, other: Path) -> bool:
    """Return whether two files hold the same values. Not collective."""
    try:
        return one.read_bytes() == other.read_bytes() or _equal(_load(one), _load(other))
    except Exception:
        # Any error from a file that is not, or not wholly, a pickle.
        return False


def _load(path: Path) -> Any:
    if zipfile.is_zipfile(path):
        import torch

        return torch.load(path, map_location="cpu", weights_only=False)
    return pickle.loads(path.read_bytes())


def _equal(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, Mapping):
        return list(one) == list(other) and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, float):
        # Bits: NaN is equal to itself, and 0.0 is not -0.0.
        return struct.pack("d", one) == struct.pack("d", other)
    if hasattr(one, "detach"):
        one, other = (tensor.detach().cpu() for tensor in (one, other))
        return (one.shape, one.dtype) == (other.shape, other.dtype) and _bits(one) == _bits(other)
    if hasattr(one, "tobytes"):
        return (one.shape, one.dtype) == (other.shape, other.dtype) and (
            one.tobytes() == other.tobytes()
        )
    if hasattr(one, "__dict__"):
        return _equal(vars(one), vars(other))
    return bool(one == other)


def _bits(tensor: Any) -> bytes:
    import torch

    # bfloat16 has no equal in NumPy.
    content: bytes = tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return content
