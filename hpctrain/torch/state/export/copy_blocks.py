"""`TensorTargets`: files that tensors are copied into, block by block, and compared afterwards.

Blocks are read in the order of the checkpoint's files, so that each is read once however many ranks
wrote the tensors, and its parts are written to wherever they belong.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from itertools import chain, groupby
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

from hpctrain.bulk.ring import map_pages
from hpctrain.bulk.state_file import BLOCK_BYTES, DTYPE_BYTES, PAGE_BYTES
from hpctrain.errors import CheckpointError
from hpctrain.torch.state.export.regions import Placement
from hpctrain.torch.state.export.saved_model import SavedChunk, SavedModel
from hpctrain.torch.state.layout.strided_copy import StridedCopy

_WINDOW_BYTES = 4 * 2**20


class Place(NamedTuple):
    """Where a tensor goes."""

    file: int
    """Number of the file."""
    start: int
    """Of its first byte."""


class _CopiedRange(NamedTuple):
    """What of a chunk is in a block."""

    block: int
    start: int
    """Where it begins in the block, in bytes."""
    size: int
    name: str
    """Of the tensor."""
    copies: Callable[[], Iterator[StridedCopy]]
    """What copies it into the tensor."""


class TensorTargets:
    """Files that exist, and that the tensors of a model are copied into.

    Parameters
    ----------
    model
        Of the checkpoint.
    paths
        The files.
    places
        Where each tensor goes, by its name.
    """

    def __init__(
        self, model: SavedModel, paths: Sequence[Path], places: Mapping[str, Place]
    ) -> None:
        self._files, self._paths, self._places = model.files, paths, places
        self._chunks: list[list[SavedChunk]] = [[] for _ in model.files]
        for chunk in model.chunks:
            self._chunks[chunk.file].append(chunk)
        self._digests: list[int] = []
        self._descriptors: list[int] = []
        self._exits = ExitStack()

    def __enter__(self) -> TensorTargets:
        """Open the files."""
        with ExitStack() as undo:
            for path in self._paths:
                descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
                undo.callback(os.close, descriptor)
                self._descriptors.append(descriptor)
            self._exits = undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Close the files."""
        self._exits.close()

    def copy(self) -> None:
        """Copy all tensors, durably. Not collective.

        Raises
        ------
        CheckpointError
            If the checkpoint cannot be read, or is damaged.
        OSError
            If a file cannot be written.
        """
        for file, chunks in zip(self._files, self._chunks, strict=True):
            parts = {block: list(its) for block, its in groupby(_parts(chunks), _block_of)}
            for block, memory in file.blocks(parts.keys()):
                for part in parts[block]:
                    content = memory[part.start : part.start + part.size]
                    self._digests.append(xxhash.xxh3_64_intdigest(content))
                    for descriptor, copy in self._copies(part):
                        _scatter(descriptor, content, copy)
        for descriptor in self._descriptors:
            os.fsync(descriptor)

    def compare(self) -> None:
        """Read all tensors again, and compare them with what was copied. Not collective.

        Raises
        ------
        CheckpointError
            If one differs.
        OSError
            If a file cannot be read.
        """
        for descriptor in self._descriptors:
            with suppress(OSError):
                # What the disk has is to be compared, not what the page cache has.
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        memory = map_pages(BLOCK_BYTES)
        digests = iter(self._digests)
        for part in chain.from_iterable(map(_parts, self._chunks)):
            content = memory[: part.size]
            for descriptor, copy in self._copies(part):
                _gather(descriptor, content, copy)
            if xxhash.xxh3_64_intdigest(content) != next(digests):
                raise CheckpointError(
                    f"{self._paths[self._places[part.name].file].name} was read again, and its "
                    f"{part.name} is not what was written. Export to another filesystem, and tell "
                    f"the site about this one."
                )

    def _copies(self, part: _CopiedRange) -> Iterator[tuple[int, StridedCopy]]:
        file, start = self._places[part.name]
        for copy in part.copies():
            yield self._descriptors[file], copy._replace(target=start + copy.target)


def _parts(chunks: Sequence[SavedChunk]) -> Iterator[_CopiedRange]:
    """Give what a file of the checkpoint has of the model, block by block."""
    for chunk in chunks:
        placement = _placement(chunk)
        for block in range(chunk.start // BLOCK_BYTES, -(-chunk.stop // BLOCK_BYTES)):
            start = max(block * BLOCK_BYTES, chunk.start)
            stop = min((block + 1) * BLOCK_BYTES, chunk.stop)
            yield _CopiedRange(
                block=block,
                start=start - block * BLOCK_BYTES,
                size=stop - start,
                name=chunk.tensor.name,
                copies=partial(placement.copies, start - chunk.start, stop - chunk.start),
            )


def _block_of(part: _CopiedRange) -> int:
    return part.block


def _placement(chunk: SavedChunk) -> Placement:
    return Placement.of(
        shape=chunk.chunk.shape,
        offsets=chunk.chunk.offsets,
        whole=chunk.tensor.stored_shape,
        item_bytes=DTYPE_BYTES[chunk.chunk.dtype],
    )


def _scatter(descriptor: int, content: memoryview, copy: StridedCopy) -> None:
    """Write the rows of a copy."""
    if not _shares_pages(copy):
        for row, target in _rows(copy, content):
            _write(descriptor, row, target)
        return
    # All rows of a window are put between what is there already.
    for window in _windows(copy):
        memory = bytearray(_span(window))
        _read(descriptor, memoryview(memory), window.target)
        _rows_within(memory, window)[:] = _rows_of(content, window)
        _write(descriptor, memoryview(memory), window.target)


def _gather(descriptor: int, content: memoryview, copy: StridedCopy) -> None:
    """Read the rows of a copy."""
    if not _shares_pages(copy):
        for row, target in _rows(copy, content):
            _read(descriptor, row, target)
        return
    for window in _windows(copy):
        memory = bytearray(_span(window))
        _read(descriptor, memoryview(memory), window.target)
        _rows_of(content, window)[:] = _rows_within(memory, window)


def _shares_pages(copy: StridedCopy) -> bool:
    """Return whether several rows are in a page, so that a call for each would take long."""
    return copy.num_rows > 1 and copy.target_stride <= PAGE_BYTES


def _rows(copy: StridedCopy, content: memoryview) -> Iterator[tuple[memoryview, int]]:
    for row in range(copy.num_rows):
        source = copy.source + row * copy.source_stride
        yield content[source : source + copy.row_bytes], copy.target + row * copy.target_stride


def _windows(copy: StridedCopy) -> Iterator[StridedCopy]:
    rows = _WINDOW_BYTES // copy.target_stride
    for first in range(0, copy.num_rows, rows):
        yield copy._replace(
            source=copy.source + first * copy.source_stride,
            target=copy.target + first * copy.target_stride,
            num_rows=min(rows, copy.num_rows - first),
        )


def _span(copy: StridedCopy) -> int:
    return (copy.num_rows - 1) * copy.target_stride + copy.row_bytes


def _rows_of(content: memoryview, copy: StridedCopy) -> Any:
    """Return the rows in the memory of a block, as an array."""
    import numpy as np

    stop = copy.source + copy.num_rows * copy.row_bytes
    whole = np.frombuffer(content[copy.source : stop], dtype=np.uint8)
    return whole.reshape(copy.num_rows, copy.row_bytes)


def _rows_within(memory: bytearray, copy: StridedCopy) -> Any:
    """Return the rows in the memory of a window, as an array."""
    import numpy as np

    whole = np.frombuffer(memory, dtype=np.uint8)
    return np.lib.stride_tricks.as_strided(
        whole, (copy.num_rows, copy.row_bytes), (copy.target_stride, 1)
    )


def _write(descriptor: int, content: memoryview, position: int) -> None:
    while content:
        done = os.pwrite(descriptor, content, position)
        position, content = position + done, content[done:]


def _read(descriptor: int, memory: memoryview, position: int) -> None:
    while memory:
        if not (done := os.preadv(descriptor, [memory], position)):
            raise OSError(errno.EIO, "a file ends before what was written to it")
        position, memory = position + done, memory[done:]
