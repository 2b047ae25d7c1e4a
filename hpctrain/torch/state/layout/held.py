"""`HeldShards`: what a rank holds of a state, in few bytes that rank 0 receives of all ranks."""

from __future__ import annotations

import json
import struct
import zlib
from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import xxhash

from hpctrain.bulk.state_file import Chunk, StateFile
from hpctrain.torch.state.layout.shards import Shard

# The fastest level: names have much in common, and so have the sizes of shards.
_LEVEL = 1
_LENGTH = struct.Struct("<Q")
_INT_BYTES = 8

Rows: TypeAlias = "array[int]"
"""Of shards, those that a rank writes: the number of the shard, the first, the one after the last;
the same of the next shard."""


class Kind(NamedTuple):
    """What is the same of a tensor on all ranks."""

    name: str
    dtype: str
    """As safetensors calls it."""
    shape: tuple[int, ...]
    """Of the whole tensor."""
    torch_type: str
    """As of `Shard`."""


@dataclass(frozen=True)
class HeldTensors:
    """What a rank knows of its tensors without where its shards are: most ranks know the same."""

    encoded: bytes
    """JSON."""

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        """Of each tensor, in order."""
        return tuple(
            Kind(name, dtype, tuple(shape), torch_type)
            for name, dtype, shape, torch_type in self._content[0]
        )

    @cached_property
    def aliases(self) -> Mapping[str, str]:
        """Names of tensors that have the memory of one before them, and its name."""
        return dict(self._content[1])

    @cached_property
    def whole(self) -> tuple[str, ...]:
        """Names of tensors that other ranks may have with other values."""
        return tuple(self._content[2])

    @cached_property
    def starts(self) -> Sequence[int]:
        """Where each shard begins in `HeldShards.places`, in bytes, and where the last one ends."""
        return list(accumulate((2 * _INT_BYTES * len(k.shape) for k in self.kinds), initial=0))

    @cached_property
    def _content(self) -> Any:
        return json.loads(self.encoded)


@dataclass(frozen=True)
class HeldShards:
    """The shards of a rank."""

    tensors: HeldTensors
    places: bytes
    """Of each shard its offsets, then its sizes, as int64."""

    @classmethod
    def of(
        cls,
        shards: Iterable[Shard],
        *,
        aliases: Mapping[str, str] = MappingProxyType({}),
        whole: Collection[str] = (),
    ) -> HeldShards:
        """Return what a rank holds. Not collective.

        Parameters
        ----------
        shards
            In order.
        aliases, whole
            As of `HeldTensors`.
        """
        kinds = []
        places = array("q")
        for name, dtype, shape, offsets, sizes, torch_type in shards:
            kinds.append((name, dtype, shape, torch_type))
            places.extend(offsets)
            places.extend(sizes)
        content = (kinds, list(aliases.items()), list(whole))
        encoded = json.dumps(content, separators=(",", ":")).encode()
        return cls(HeldTensors(encoded), places.tobytes())

    def digest(self) -> bytes:
        """Return what no other shards have. Not collective."""
        digest = xxhash.xxh3_128(_LENGTH.pack(len(self.tensors.encoded)))
        digest.update(self.tensors.encoded)
        digest.update(self.places)
        return digest.digest()

    def encode(self) -> bytes:
        """Return what `decode_all` reads. Not collective."""
        tensors = zlib.compress(self.tensors.encoded, _LEVEL)
        return _LENGTH.pack(len(tensors)) + tensors + zlib.compress(self.places, _LEVEL)

    def shard(self, number: int) -> Shard:
        """Return one of the shards. Not collective."""
        name, dtype, shape, torch_type = self.tensors.kinds[number]
        start, dimensions = self.tensors.starts[number] // _INT_BYTES, len(shape)
        place = tuple(self._numbers[start : start + 2 * dimensions])
        return Shard(name, dtype, shape, place[:dimensions], place[dimensions:], torch_type)

    def chunks(self, rows: Rows) -> list[Chunk]:
        """Return the chunks of a file that holds some rows. Not collective."""
        return [
            self.shard(number).chunk(start, stop)
            for number, start, stop in zip(rows[::3], rows[1::3], rows[2::3], strict=True)
        ]

    def layout(self, rows: Rows) -> StateFile:
        """Return the layout of that file. Not collective."""
        return StateFile.plan(self.chunks(rows))

    @cached_property
    def _numbers(self) -> memoryview[int]:
        return memoryview(self.places).cast("q")


def decode_all(contents: Iterable[bytes]) -> list[HeldShards]:
    """Return what ranks hold, given what each has encoded. Not collective.

    What ranks know of tensors is kept once, if it is the same.
    """
    known: dict[bytes, HeldTensors] = {}
    held = []
    for content in contents:
        stop = _LENGTH.size + _LENGTH.unpack_from(content)[0]
        encoded = content[_LENGTH.size : stop]
        if encoded not in known:
            known[encoded] = HeldTensors(zlib.decompress(encoded))
        held.append(HeldShards(known[encoded], zlib.decompress(content[stop:])))
    return held
