"""Whether two files of checkpoints hold the same values, even where their bytes differ.

Pickles of equal values can differ: a string that occurs twice is written once if it is the same
object, which it is no more after it was loaded. So files of torch and pickles are opened, and every
number in them is compared, bit by bit; of an object of any other class, what pickle would write of
it. What cannot be compared differs. This runs code that the files name: they are the user's own.
"""

from __future__ import annotations

import pickle
import struct
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

_PLAIN = (type(None), bool, int, str, bytes, bytearray)
_BY_NAME = (type, FunctionType, BuiltinFunctionType, ModuleType)
"""What a pickle names, and does not hold."""


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


def _equal(one: Any, other: Any, compared: dict[tuple[int, int], Any] | None = None) -> bool:
    compared = {} if compared is None else compared
    if type(one) is not type(other):
        return False
    if type(one) in _PLAIN:
        return bool(one == other)
    if isinstance(one, _BY_NAME):
        return one is other
    if isinstance(one, float):
        # Bits: NaN is equal to itself, and 0.0 is not -0.0.
        return struct.pack("d", one) == struct.pack("d", other)
    place = (id(one), id(other))
    if place in compared:
        return True
    # Kept, so that no other object gets its id.
    compared[place] = one, other
    if type(one) is dict:
        one, other = list(one.items()), list(other.items())
    if type(one) in (list, tuple):
        return len(one) == len(other) and all(
            _equal(*pair, compared) for pair in zip(one, other, strict=True)
        )
    if _is_a(one, "torch", "Tensor"):
        one, other = (tensor.detach().cpu() for tensor in (one, other))
        return _type_of(one) == _type_of(other) and _bits(one) == _bits(other)
    if _is_a(one, "numpy", "ndarray") or _is_a(one, "numpy", "generic"):
        if one.dtype.hasobject:
            one, other = ((_type_of(each), each.tolist()) for each in (one, other))
            return _equal(one, other, compared)
        return _type_of(one) == _type_of(other) and bool(one.tobytes() == other.tobytes())
    if isinstance(one, set | frozenset):
        # They are pickled in an order of their own.
        own, its = (getattr(each, "__dict__", None) for each in (one, other))
        return bool(one == other) and _equal(own, its, compared)
    return _equal(_reduced(one), _reduced(other), compared)


def _type_of(array: Any) -> tuple[Any, Any]:
    return array.shape, array.dtype


def _reduced(value: Any) -> Any:
    """Return what pickle would write of an object. It is an error if that cannot be had."""
    reduced = value.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    if isinstance(reduced, str):
        return reduced
    # Items of a list or a dict come as iterators.
    return [list(part) if isinstance(part, Iterator) else part for part in reduced]


def _is_a(value: Any, module: str, name: str) -> bool:
    # What has made one has imported the module.
    its_class = getattr(sys.modules.get(module), name, None)
    return its_class is not None and isinstance(value, its_class)


def _bits(tensor: Any) -> bytes:
    import torch

    # bfloat16 has no equal in NumPy.
    content: bytes = tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return content
