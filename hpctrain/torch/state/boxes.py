"""`boxes_of`: the parts of tensors that this rank holds, as they lie in files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from hpctrain.bulk.state_file import DTYPE_BYTES, Piece
from hpctrain.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    import torch

    from hpctrain.bulk.index import StateIndex

_SAFETENSORS_NAMES = {
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
_TORCH_NAMES = {theirs: ours for ours, theirs in _SAFETENSORS_NAMES.items()}
# Files have its real and its imaginary part, in a dimension more.
_PAIRS = "complex128"
# By their bytes: as what the bits of other types are written, float8 of rarer kinds for instance.
_BITS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}


class Box(NamedTuple):
    """What ranks tell each other of a part of a tensor, which may be all or nothing of it."""

    name: str
    dtype: str
    """As safetensors calls it."""
    shape: tuple[int, ...]
    """Of the whole tensor."""
    offsets: tuple[int, ...]
    """Where the box begins."""
    sizes: tuple[int, ...]
    """Shape of the box."""
    torch_type: str = ""
    """What torch calls the type, if safetensors has none and `dtype` is that of its bits."""

    @property
    def kind(self) -> str:
        """Type and shape of the whole tensor, as torch calls them."""
        called = self.torch_type or _TORCH_NAMES[self.dtype]
        return f"{called}{list(_without_pairs(self.shape, self.torch_type))}"

    @property
    def row_dimension(self) -> int:
        """Dimension along which the box is cut: the first that has more than one element."""
        return row_dimension(self._live_sizes)

    @property
    def rows(self) -> int:
        """Parts into which the box can be cut."""
        return self._live_sizes[self.row_dimension] if self._live_sizes else 1

    @property
    def row_bytes(self) -> int:
        """Bytes of each of them."""
        return math.prod(self.sizes) * DTYPE_BYTES[self.dtype] // self.rows if self.rows else 0

    def piece(self, start: int, stop: int) -> Piece:
        """Return what a file is told of some rows. Not collective."""
        sizes, offsets = list(self.sizes), list(self.offsets)
        if self._live_sizes:
            sizes[self.row_dimension] = stop - start
            offsets[self.row_dimension] += start
        return Piece(name=self.name, dtype=self.dtype, shape=tuple(sizes), offsets=tuple(offsets))

    @property
    def _live_sizes(self) -> tuple[int, ...]:
        return _without_pairs(self.sizes, self.torch_type)


# Every tensor has one before a load reads its first byte, and a tuple is soonest made.
class LocalBox(NamedTuple):
    """A box with its content."""

    box: Box
    content: torch.Tensor
    """Of the box's shape and type, on any device; a view of the live tensor, or a copy of it."""
    copied: torch.Tensor | None = None
    """The live tensor, if the content is a copy of it."""

    def view(self, piece: Piece) -> torch.Tensor:
        """Return the content of a piece of the box. Not collective."""
        view = self.content
        for dimension, size in enumerate(piece.shape):
            if size != view.shape[dimension]:
                start = piece.offsets[dimension] - self.box.offsets[dimension]
                view = view.narrow(dimension, start, size)
        return view

    def views(self) -> tuple[LocalBox, ...]:
        """Return boxes that are views of the live tensor, and this one together.

        Not collective.
        """
        if self.copied is None:
            return (self,)
        # There is no view of a conjugated tensor as pairs of numbers, but of each half of them.
        *offsets, _ = self.box.offsets
        *sizes, _ = self.box.sizes
        halves = (self.copied.real, self.copied.imag)
        return tuple(
            LocalBox(
                box=self.box._replace(offsets=(*offsets, number), sizes=(*sizes, 1)),
                content=half.unsqueeze(-1),
            )
            for number, half in enumerate(halves)
        )


def dtype_called(name: str) -> torch.dtype:
    """Return the type of torch that safetensors calls so. Not collective."""
    import torch

    return getattr(torch, _TORCH_NAMES[name])  # type: ignore[no-any-return]


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
    return found, _without_pairs(shape, called)


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

    called = _name_of(tensor.dtype)
    if called in _SAFETENSORS_NAMES:
        return tensor
    if called != _PAIRS and tensor.element_size() not in _BITS:
        raise ConfigError(f"{name} has elements of type {called}, which cannot be saved.")
    if tensor.is_conj() or tensor.is_neg():
        raise ConfigError(
            f"{name} is a conjugated or negated tensor of type {called}, of whose bits there is no "
            f"view. Give {name}.resolve_conj().resolve_neg()."
        )
    if called == _PAIRS:
        return torch.view_as_real(tensor)
    return tensor.view(getattr(torch, _BITS[tensor.element_size()]))


def stored_kind(tensor: torch.Tensor) -> tuple[str, tuple[int, ...]]:
    """Return the type and shape that a tensor has in files, as safetensors calls them.

    Not collective.
    """
    called = _name_of(tensor.dtype)
    if called == _PAIRS:
        return "F64", (*tensor.shape, 2)
    if called not in _SAFETENSORS_NAMES:
        called = _BITS.get(tensor.element_size(), called)
    return _SAFETENSORS_NAMES.get(called, called), tuple(tensor.shape)


def row_dimension(sizes: Sequence[int]) -> int:
    """Return the dimension along which a box of this shape is cut. Not collective."""
    return next((i for i, size in enumerate(sizes) if size != 1), 0)


def safetensors_name(dtype: torch.dtype, *, name: str) -> str:
    """Return what safetensors calls a type. Not collective.

    Raises
    ------
    ConfigError
        If it has no such type; names the tensor.
    """
    called = _name_of(dtype)
    if called not in _SAFETENSORS_NAMES:
        raise ConfigError(f"{name} has elements of type {called}, which safetensors has not.")
    return _SAFETENSORS_NAMES[called]


def boxes_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, LocalBox]:
    """Return what this rank holds of tensors, by name. Not collective.

    Of a DTensor it is the local shard, of any other tensor all of it: such are taken to be the same
    on every rank.

    Raises
    ------
    ConfigError
        If a tensor has no elements that lie in memory one by one.
    """
    boxes = {}
    for name, tensor in tensors.items():
        if (held := held_of(name, tensor)) is not None:
            boxes[name] = box_of(name, held[0], tensor.shape, held[1])
    return boxes


def held_of(name: str, tensor: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...]] | None:
    """Return what this rank holds of a tensor, and where in it that begins; None if it has no part.

    Not collective.
    """
    # What has no placements is no DTensor, and asking for the class would import it.
    if hasattr(tensor, "placements") and hasattr(tensor, "to_local"):
        return _place(name, tensor)
    return tensor.detach(), (0,) * tensor.dim()


def box_of(
    name: str, local: torch.Tensor, shape: Sequence[int], offsets: Sequence[int]
) -> LocalBox:
    """Return a box of a tensor as it lies in a file. Not collective.

    Parameters
    ----------
    name
        Of the tensor.
    local
        The box.
    shape
        Of the whole tensor.
    offsets
        Where the box begins.

    Raises
    ------
    ConfigError
        If its elements do not lie in memory one by one.
    """
    import torch

    if local.is_meta or local.layout is not torch.strided or local.is_quantized:
        kind = (
            "meta"
            if local.is_meta
            else str(local.layout if not local.is_quantized else local.dtype)
        )
        raise ConfigError(
            f"{name} is a tensor of kind {kind}, whose elements do not lie in memory one by one. "
            f"Save it as a dense tensor, .to_dense() for instance, or leave it out."
        )
    if type(local).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise ConfigError(
            f"{name} is a {type(local).__qualname__}, a tensor that wraps others. Save those: its "
            f"__tensor_flatten__() names them."
        )
    dtype = _name_of(local.dtype)
    torch_type = "" if dtype in _SAFETENSORS_NAMES else dtype
    copied = None
    if torch_type == _PAIRS:
        shape, offsets = (*shape, 2), (*offsets, 0)
        if local.is_conj() or local.is_neg():
            copied, local = local, local.resolve_conj().resolve_neg()
    if torch_type:
        local = as_stored(local, name=name)
        dtype = _name_of(local.dtype)
    box = Box(
        name=name,
        dtype=_SAFETENSORS_NAMES[dtype],
        shape=tuple(shape),
        offsets=tuple(offsets),
        sizes=tuple(local.shape),
        torch_type=torch_type,
    )
    return LocalBox(box=box, content=local, copied=copied)


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _without_pairs(sizes: tuple[int, ...], torch_type: str) -> tuple[int, ...]:
    return sizes[:-1] if torch_type == _PAIRS else sizes


def _place(name: str, tensor: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...]] | None:
    """Return the local shard and its offsets; None on ranks that have no part in the tensor."""
    if any(placement.is_partial() for placement in tensor.placements):  # type: ignore[attr-defined]
        raise ConfigError(
            f"{name} is a DTensor whose ranks hold terms of a sum. Save it with placements that "
            f"are Shard or Replicate: tensor.redistribute(...)."
        )
    if tensor.device_mesh.get_coordinate() is None:  # type: ignore[attr-defined]
        return None
    # As torch.distributed.checkpoint asks tensors for them.
    chunks = tensor.__create_chunk_list__()  # type: ignore[attr-defined]
    if not chunks:
        return None
    if len(chunks) > 1:
        raise ConfigError(
            f"{name} is a DTensor of which this rank holds {len(chunks)} boxes. One can be saved."
        )
    local = tensor.to_local().detach()  # type: ignore[attr-defined]
    return local, tuple(chunks[0].offsets)
