"""`boxes_of`: the parts of tensors that this rank holds, as they lie in files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from hpctrain.bulk.state_file import DTYPE_BYTES, Piece
from hpctrain.errors import ConfigError

if TYPE_CHECKING:
    import torch

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

    @property
    def row_dimension(self) -> int:
        """Dimension along which the box is cut: the first that has more than one element."""
        return row_dimension(self.sizes)

    @property
    def rows(self) -> int:
        """Parts into which the box can be cut."""
        return self.sizes[self.row_dimension] if self.sizes else 1

    @property
    def row_bytes(self) -> int:
        """Bytes of each of them."""
        return math.prod(self.sizes) * DTYPE_BYTES[self.dtype] // self.rows if self.rows else 0

    def piece(self, start: int, stop: int) -> Piece:
        """Return what a file is told of some rows. Not collective."""
        sizes, offsets = list(self.sizes), list(self.offsets)
        if sizes:
            sizes[self.row_dimension] = stop - start
            offsets[self.row_dimension] += start
        return Piece(name=self.name, dtype=self.dtype, shape=tuple(sizes), offsets=tuple(offsets))


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

    called = next(key for key, value in _SAFETENSORS_NAMES.items() if value == name)
    return getattr(torch, called)  # type: ignore[no-any-return]


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
    called = str(dtype).removeprefix("torch.")
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
    dtype = str(local.dtype).removeprefix("torch.")
    copied = None
    if dtype == "complex128":
        # safetensors has no such type: the real and the imaginary part are a dimension more.
        if local.is_conj() or local.is_neg():
            copied, local = local, local.resolve_conj().resolve_neg()
        local = torch.view_as_real(local)
        dtype, shape, offsets = "float64", (*shape, 2), (*offsets, 0)
    elif dtype not in _SAFETENSORS_NAMES:
        # Float8 of rarer kinds, for instance: their bits, in integers as wide.
        width = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        if local.element_size() not in width:
            raise ConfigError(f"{name} has elements of type {dtype}, which cannot be saved.")
        if local.is_conj() or local.is_neg():
            raise ConfigError(
                f"{name} is a conjugated or negated tensor of type {dtype}, of whose bits there is "
                f"no view. Give {name}.resolve_conj().resolve_neg()."
            )
        local = local.view(width[local.element_size()])
        dtype = str(local.dtype).removeprefix("torch.")
    box = Box(
        name=name,
        dtype=_SAFETENSORS_NAMES[dtype],
        shape=tuple(shape),
        offsets=tuple(offsets),
        sizes=tuple(local.shape),
    )
    return LocalBox(box=box, content=local, copied=copied)


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
