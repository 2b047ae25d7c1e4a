"""Types of elements, as torch and as safetensors call them, and those that safetensors lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpctrain.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    import torch

    from hpctrain.bulk.index import StateIndex

SAFETENSORS_NAMES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "float16": "F16",
    "bfloat16": "BF16",
    "uint32": "U32",
    "int32": "I32",
    "float32": "F32",
    "uint64": "U64",
    "int64": "I64",
    "float64": "F64",
    "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}
TORCH_NAMES = {theirs: ours for ours, theirs in SAFETENSORS_NAMES.items()}
# Files have its real and its imaginary stateful, in a dimension more.
PAIRS = "complex128"
# By their bytes: as what the bits of other types are written, float8 of rarer kinds for instance.
_BITS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}


def torch_name(dtype: torch.dtype) -> str:
    """Return what torch calls a type. Not collective."""
    return str(dtype).removeprefix("torch.")


def dtype_called(name: str) -> torch.dtype:
    """Return the type of torch that safetensors calls so. Not collective."""
    import torch

    return getattr(torch, TORCH_NAMES[name])  # type: ignore[no-any-return]


def safetensors_name(dtype: torch.dtype, *, name: str) -> str:
    """Return what safetensors calls a type. Not collective.

    Raises
    ------
    ConfigError
        If it has no such type; names the tensor.
    """
    called = torch_name(dtype)
    if called not in SAFETENSORS_NAMES:
        raise ConfigError(f"{name} has elements of type {called}, which safetensors has not.")
    return SAFETENSORS_NAMES[called]


def live_kind(name: str, dtype: str, index: StateIndex) -> tuple[torch.dtype, tuple[int, ...]]:
    """Return the type and shape of a tensor that takes in a saved one. Not collective.

    Parameters
    ----------
    name
        As in the shapes of the index.
    dtype
        Of its bits in the files, as safetensors calls it.
    index
        Of the checkpoint.

    Raises
    ------
    CheckpointError
        If this torch has no such type.
    """
    import torch

    shape = index.shapes[name]
    called = (index.types or {}).get(name)
    if called is None:
        return dtype_called(dtype), shape
    found = getattr(torch, called, None)
    if not isinstance(found, torch.dtype):
        raise CheckpointError(
            f"{name} has elements of type {called}, which torch {torch.__version__} has not. Use a "
            f"newer torch."
        )
    return found, without_pairs(shape, called)


def stored_kind(tensor: torch.Tensor) -> tuple[str, tuple[int, ...]]:
    """Return the type and shape that a tensor has in files, as safetensors calls them.

    Not collective.
    """
    called = torch_name(tensor.dtype)
    if called == PAIRS:
        return "F64", (*tensor.shape, 2)
    if called not in SAFETENSORS_NAMES:
        called = _BITS.get(tensor.element_size(), called)
    return SAFETENSORS_NAMES.get(called, called), tuple(tensor.shape)


def as_stored(tensor: torch.Tensor, *, name: str) -> torch.Tensor:
    """Return a view of a tensor with a type that safetensors has. Not collective.

    Parameters
    ----------
    tensor
        Of any type.
    name
        Of the tensor, for errors.

    Raises
    ------
    ConfigError
        If there is no such view.
    """
    import torch

    called = torch_name(tensor.dtype)
    if called in SAFETENSORS_NAMES:
        return tensor
    if called != PAIRS and tensor.element_size() not in _BITS:
        raise ConfigError(f"{name} has elements of type {called}, which cannot be saved.")
    if tensor.is_conj() or tensor.is_neg():
        raise ConfigError(
            f"{name} is a conjugated or negated tensor of type {called}, of whose bits there is no "
            f"view. Give {name}.resolve_conj().resolve_neg()."
        )
    if called == PAIRS:
        return torch.view_as_real(tensor)
    return tensor.view(getattr(torch, _BITS[tensor.element_size()]))


def without_pairs(sizes: tuple[int, ...], torch_type: str) -> tuple[int, ...]:
    """Return the shape of a tensor whose type has this shape in files. Not collective."""
    return sizes[:-1] if torch_type == PAIRS else sizes
