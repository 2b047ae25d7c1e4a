"""`shards_of`: what this rank holds of tensors, as it lies in files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from hpctrain.bulk.state_file import DTYPE_BYTES, Chunk
from hpctrain.errors import ConfigError
from hpctrain.torch.state.state_dict.dtypes import (
    PAIRS,
    SAFETENSORS_NAMES,
    TORCH_NAMES,
    as_stored,
    torch_name,
    without_pairs,
)

if TYPE_CHECKING:
    import torch


class Shard(NamedTuple):
    """A rank's part of a tensor, as ranks exchange it; it may be all or nothing of it."""

    name: str
    dtype: str
    """As safetensors calls it."""
    shape: tuple[int, ...]
    """Of the whole tensor."""
    offsets: tuple[int, ...]
    """Where the shard begins."""
    sizes: tuple[int, ...]
    """Shape of the shard."""
    torch_type: str = ""
    """What torch calls the type, if safetensors has none and `dtype` is that of its bits."""

    @property
    def kind(self) -> str:
        """Type and shape of the whole tensor, as torch calls them."""
        called = self.torch_type or TORCH_NAMES[self.dtype]
        return f"{called}{list(without_pairs(self.shape, self.torch_type))}"

    @property
    def row_dimension(self) -> int:
        """Dimension along which the shard is cut: the first that has more than one element."""
        return row_dimension(self._live_sizes)

    @property
    def rows(self) -> int:
        """Parts into which the shard can be cut."""
        return self._live_sizes[self.row_dimension] if self._live_sizes else 1

    @property
    def row_bytes(self) -> int:
        """Bytes of each of them."""
        return math.prod(self.sizes) * DTYPE_BYTES[self.dtype] // self.rows if self.rows else 0

    def chunk(self, start: int, stop: int) -> Chunk:
        """Return the chunk of a file that holds some rows. Not collective."""
        sizes, offsets, live = self.sizes, self.offsets, self._live_sizes
        # Most chunks are all of a shard.
        if live and stop - start != live[cut := row_dimension(live)]:
            sizes = (*sizes[:cut], stop - start, *sizes[cut + 1 :])
            offsets = (*offsets[:cut], offsets[cut] + start, *offsets[cut + 1 :])
        return Chunk(name=self.name, dtype=self.dtype, shape=sizes, offsets=offsets)

    @property
    def _live_sizes(self) -> tuple[int, ...]:
        return without_pairs(self.sizes, self.torch_type)


# Every tensor has one before a load reads its first byte, and a tuple is soonest made.
class LocalShard(NamedTuple):
    """A shard with its content."""

    shard: Shard
    content: torch.Tensor
    """Of the shard's shape and type, on any device; a view of the live tensor, or a copy of it."""
    copied: torch.Tensor | None = None
    """The live tensor, if the content is a copy of it."""

    def view(self, chunk: Chunk) -> torch.Tensor:
        """Return the content of a chunk of the shard. Not collective."""
        view = self.content
        for dimension, size in enumerate(chunk.shape):
            if size != view.shape[dimension]:
                start = chunk.offsets[dimension] - self.shard.offsets[dimension]
                view = view.narrow(dimension, start, size)
        return view

    def views(self) -> tuple[LocalShard, ...]:
        """Return shards that are views of the live tensor, and this one together.

        Not collective.
        """
        if self.copied is None:
            return (self,)
        # There is no view of a conjugated tensor as pairs of numbers, but of each half of them.
        *offsets, _ = self.shard.offsets
        *sizes, _ = self.shard.sizes
        halves = (self.copied.real, self.copied.imag)
        return tuple(
            LocalShard(
                shard=self.shard._replace(offsets=(*offsets, number), sizes=(*sizes, 1)),
                content=half.unsqueeze(-1),
            )
            for number, half in enumerate(halves)
        )


def shards_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, LocalShard]:
    """Return what this rank holds of tensors, by name. Not collective.

    Of a DTensor it is the local shard, of any other tensor all of it: such are taken to be the same
    on every rank.

    Raises
    ------
    ConfigError
        If a tensor has no elements that lie in memory one by one.
    """
    shards = {}
    for name, tensor in tensors.items():
        if (held := held_of(name, tensor)) is not None:
            shards[name] = shard_of(name, held[0], tensor.shape, held[1])
    return shards


def held_of(name: str, tensor: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...]] | None:
    """Return what this rank holds of a tensor, and where in it that begins; None if it has no part.

    Not collective.
    """
    # What has no placements is no DTensor, and asking for the class would import it.
    if hasattr(tensor, "placements") and hasattr(tensor, "to_local"):
        return _place(name, tensor)
    return tensor.detach(), (0,) * tensor.dim()


def shard_of(
    name: str, local: torch.Tensor, shape: Sequence[int], offsets: Sequence[int]
) -> LocalShard:
    """Return a shard of a tensor as it lies in a file. Not collective.

    Parameters
    ----------
    name
        Of the tensor.
    local
        The shard.
    shape
        Of the whole tensor.
    offsets
        Where the shard begins.

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
    dtype = torch_name(local.dtype)
    torch_type = "" if dtype in SAFETENSORS_NAMES else dtype
    copied = None
    if torch_type == PAIRS:
        shape, offsets = (*shape, 2), (*offsets, 0)
        if local.is_conj() or local.is_neg():
            copied, local = local, local.resolve_conj().resolve_neg()
    if torch_type:
        local = as_stored(local, name=name)
        dtype = torch_name(local.dtype)
    shard = Shard(
        name=name,
        dtype=SAFETENSORS_NAMES[dtype],
        shape=tuple(shape),
        offsets=tuple(offsets),
        sizes=tuple(local.shape),
        torch_type=torch_type,
    )
    return LocalShard(shard=shard, content=local, copied=copied)


def row_dimension(sizes: Sequence[int]) -> int:
    """Return the dimension along which a shard of this shape is cut. Not collective."""
    for dimension, size in enumerate(sizes):
        if size != 1:
            return dimension
    return 0


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
            f"{name} is a DTensor of which this rank holds {len(chunks)} shards. One can be saved."
        )
    local = tensor.to_local().detach()  # type: ignore[attr-defined]
    return local, tuple(chunks[0].offsets)
