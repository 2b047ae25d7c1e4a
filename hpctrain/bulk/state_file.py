"""`StateFile`: what one writer's file of tensors looks like.

A safetensors file (https://huggingface.co/docs/safetensors/index#format) whose data begin on a
page, so that they can be written and read past the page cache, and whose header holds a digest of
each block of them. A digest of the header therefore stands for the whole file.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import xxhash

from hpctrain.errors import CheckpointError

BLOCK_BYTES = 8 * 2**20
"""Of data that have one digest, and are written in one call."""
HASHED_BYTES = 2**19
"""Of a block, what is copied and hashed in turns: source and copy stay in a core's cache, which has
1 MiB and more. Both together then take little longer than the copy."""
PAGE_BYTES = 4096
"""What O_DIRECT aligns offsets, sizes and memory to; no disk in use needs more."""
DTYPE_BYTES: Mapping[str, int] = {
    **dict.fromkeys(("C64", "F64", "I64", "U64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 2),
    **dict.fromkeys(("BOOL", "I8", "U8", "F8_E4M3", "F8_E5M2"), 1),
}
"""Bytes of one element, by safetensors' name of its type."""
_LENGTH = struct.Struct("<Q")
_METADATA = "__metadata__"
_BLOCK_BYTES_KEY = "hpctrain.block_bytes"
_DIGESTS_KEY = "hpctrain.xxh3_64"
# Of torch.distributed.checkpoint's HuggingFaceStorageReader, which so reads our files.
_SHARDING_KEY, _OFFSETS_KEY = "DCP_SHARDING_INFO", "saved_offsets"
# A reader trusts the length that a file names up to here, as safetensors does.
_MAX_HEADER_BYTES = 100_000_000


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """A region of a tensor, which may be all of it."""

    name: str
    """Of the tensor."""
    dtype: str
    """As safetensors calls it, see `DTYPE_BYTES`."""
    shape: tuple[int, ...]
    """Of this region."""
    offsets: tuple[int, ...]
    """Where the region begins in the tensor; zeros if it is all of it."""

    @property
    def size(self) -> int:
        """Bytes."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, kw_only=True)
class StateFile:
    """The layout of one file; all but the digests is known before the first byte is written."""

    chunks: tuple[Chunk, ...]
    """One after the other, without holes."""
    starts: tuple[int, ...]
    """Where each begins in the data, in bytes."""
    data_bytes: int
    header_bytes: int
    """Where the data begin in the file; a multiple of `PAGE_BYTES`."""
    digests: tuple[str, ...] = ()
    """xxh3_64 of each block of `BLOCK_BYTES` of the data, 16 hexadecimal digits each."""

    @staticmethod
    def plan(chunks: Iterable[Chunk]) -> StateFile:
        """Return the layout of a file with these chunks, without digests. Not collective.

        Parameters
        ----------
        chunks
            At most one of a tensor. Those of wide types go first, so that each is aligned to its
            type.
        """
        ordered = sorted(chunks, key=lambda chunk: -DTYPE_BYTES[chunk.dtype])
        starts, position = [], 0
        for chunk in ordered:
            starts.append(position)
            position += chunk.size
        file = StateFile(
            chunks=tuple(ordered), starts=tuple(starts), data_bytes=position, header_bytes=0
        )
        unpadded = _LENGTH.size + len(_encode(file, ["0" * 16] * file.blocks))
        return StateFile(
            chunks=file.chunks,
            starts=file.starts,
            data_bytes=position,
            header_bytes=whole_pages(unpadded),
        )

    @property
    def blocks(self) -> int:
        """Number of blocks; the last may be shorter than the others."""
        return -(-self.data_bytes // BLOCK_BYTES)

    @property
    def size(self) -> int:
        """Bytes of the whole file."""
        return self.header_bytes + self.data_bytes

    def extent(self, block: int) -> tuple[int, int]:
        """Return where in the data a block begins and ends, in bytes. Not collective."""
        return block * BLOCK_BYTES, min((block + 1) * BLOCK_BYTES, self.data_bytes)

    def header(self, digests: Sequence[str]) -> bytes:
        """Return the first `header_bytes` of the file. Not collective."""
        content = _encode(self, digests)
        length = self.header_bytes - _LENGTH.size
        return _LENGTH.pack(length) + content.ljust(length)

    @staticmethod
    def parse(header: bytes, *, size: int, name: str) -> StateFile:
        """Return the layout that a header describes. Not collective.

        Parameters
        ----------
        header
            The file's first bytes: `header_length` of them, or more.
        size
            Bytes of the whole file.
        name
            Of the file, for errors.

        Raises
        ------
        CheckpointError
            If it is no header, or not of a file of this size; or if another program's file has
            tensors of a type that is not in `DTYPE_BYTES`. Files of other programs have no digests,
            and need not begin on a page.
        """
        try:
            stop = header_length(header[: _LENGTH.size], name=name)
            content = json.loads(header[_LENGTH.size : stop])
            metadata = content.pop(_METADATA, {})
            sharding = json.loads(metadata.get(_SHARDING_KEY, "{}"))
            unknown = {value["dtype"] for value in content.values()} - DTYPE_BYTES.keys()
            # In a file of ours there is none: its header is torn.
            if unknown and _DIGESTS_KEY not in metadata:
                raise CheckpointError(
                    f"{name} has tensors of type {', '.join(sorted(unknown))}, and hpctrain reads "
                    f"{', '.join(DTYPE_BYTES)}. Save them as another type."
                )
            found = [
                (value["data_offsets"], _decode_chunk(key, value, sharding.get(key, {})))
                for key, value in content.items()
            ]
            found.sort(key=lambda pair: pair[0])
            digests = metadata.get(_DIGESTS_KEY, "")
            file = StateFile(
                chunks=tuple(chunk for _, chunk in found),
                starts=tuple(offsets[0] for offsets, _ in found),
                data_bytes=found[-1][0][1] if found else 0,
                header_bytes=stop,
                digests=tuple(digests[i : i + 16] for i in range(0, len(digests), 16)),
            )
            fits = all(
                stop - start == chunk.size for (start, stop), chunk in found
            ) and metadata.get(_BLOCK_BYTES_KEY) in (None, str(BLOCK_BYTES))
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise CheckpointError(f"{name} is damaged: its header is torn.") from error
        if not fits or file.size != size or len(file.digests) not in (0, file.blocks):
            raise CheckpointError(
                f"{name} is damaged: it has {size} bytes, and its header tells of {file.size}."
            )
        return file


def whole_pages(size: int) -> int:
    """Return the next multiple of a page, in bytes. Not collective."""
    return -(-size // PAGE_BYTES) * PAGE_BYTES


def header_length(first: bytes, *, name: str) -> int:
    """Return where the data of a file begin, given its first 8 bytes. Not collective.

    Raises
    ------
    CheckpointError
        If they are none of a safetensors file.
    """
    length = _LENGTH.unpack(first)[0] if len(first) == _LENGTH.size else 0
    if not 2 <= length <= _MAX_HEADER_BYTES:
        raise CheckpointError(f"{name} is damaged: its header is torn.")
    return int(length) + _LENGTH.size


def is_ours(header: bytes) -> bool:
    """Return whether a header, whole or torn, has digests of blocks. Not collective."""
    return _DIGESTS_KEY.encode() in header


def file_digest(header: bytes) -> str:
    """Return the digest that stands for a file with this header, and so for its data.

    Not collective. 32 hexadecimal digits.
    """
    return xxhash.xxh3_128_hexdigest(header)


def _decode_chunk(
    name: str, value: Mapping[str, Any], sharding: Mapping[str, Sequence[int]]
) -> Chunk:
    offsets = sharding.get(_OFFSETS_KEY, [0] * len(value["shape"]))
    return Chunk(
        name=name, dtype=value["dtype"], shape=tuple(value["shape"]), offsets=tuple(offsets)
    )


def _encode(file: StateFile, digests: Sequence[str]) -> bytes:
    sharding = {chunk.name: {_OFFSETS_KEY: list(chunk.offsets)} for chunk in file.chunks}
    content: dict[str, Any] = {
        _METADATA: {
            "format": "pt",
            _SHARDING_KEY: json.dumps(sharding, separators=(",", ":")),
            _BLOCK_BYTES_KEY: str(BLOCK_BYTES),
            _DIGESTS_KEY: "".join(digests),
        }
    }
    for chunk, start in zip(file.chunks, file.starts, strict=True):
        content[chunk.name] = {
            "dtype": chunk.dtype,
            "shape": list(chunk.shape),
            "data_offsets": [start, start + chunk.size],
        }
    return json.dumps(content, separators=(",", ":")).encode()
