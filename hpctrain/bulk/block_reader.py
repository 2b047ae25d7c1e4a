"""`BlockReader`: reads a state's file block by block, into the memory it is for, and verified.

What the page cache has is read from there, straight into place. What it has not is read past it, a
part at a time, and is hashed and copied into place while the processor's caches have it: that takes
less CPU time than to go through the page cache, and does not push out what others have there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import xxhash

from hpctrain.bulk.direct import FileReader
from hpctrain.bulk.header import read_layout
from hpctrain.bulk.ring import map_pages
from hpctrain.bulk.state_file import (
    HASHED_BYTES,
    PAGE_BYTES,
    StateFile,
    whole_pages,
)
from hpctrain.bulk.unreadable import UnreadableError, is_passing
from hpctrain.errors import CheckpointError

PART_BYTES = 2 * 2**20
"""What is read past the page cache at a time, into the same memory again and again. Disk and
processor wait for the same memory: what stays in the caches is hashed and copied at less cost to
both. Writing in such parts was measured too, and is no faster."""

_IOV_MAX = 1024


class DamagedError(CheckpointError):
    """A block cannot be read, or is not what was written."""


def scratch_memory() -> memoryview:
    """Return memory for one part of a block. Not collective."""
    return map_pages(PART_BYTES)


class BlockReader:
    """Reads blocks of one file. Any number of threads may, each into memory of its own.

    Parameters
    ----------
    path
        The file.
    layout
        What is in it. Blocks are verified if it has digests.

    Raises
    ------
    CheckpointError
        If it cannot be opened: `UnreadableError` if that may pass.
    """

    def __init__(self, path: Path, layout: StateFile) -> None:
        self.path = path
        self.layout = layout
        self._was_cached: dict[int, bool] = {}
        try:
            # Of other programs' files, data begin anywhere.
            self._file = FileReader(path, aligned=layout.header_bytes % PAGE_BYTES == 0)
        except OSError as error:
            kind = UnreadableError if is_passing(error) else CheckpointError
            raise kind(f"{path} cannot be opened: {error.strerror}.") from error

    def __enter__(self) -> BlockReader:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        self.close()

    def close(self) -> None:
        """Close the file. Not collective."""
        self._file.close()

    def read_into(self, block: int, memories: Sequence[memoryview], scratch: memoryview) -> None:
        """Read a block into memories, one after the other. Not collective.

        Parameters
        ----------
        memories
            Writable bytes, as many together as the block has.
        scratch
            Of `scratch_memory`, which is used if the page cache has not got the block.

        Raises
        ------
        CheckpointError
            If it cannot be read, or is not what was written. The memories hold anything then.
        """
        if self._is_cached(block):
            self._read_cached(block, memories)
            return
        import numpy as np

        left = [memory for memory in memories if len(memory)][::-1]
        for part in self.read_parts(block, scratch):
            done = 0
            while done < len(part):
                memory = left.pop()
                size = min(len(memory), len(part) - done)
                # Unlike a copy of Python's own, it gives the lock away.
                source = np.frombuffer(part[done : done + size], dtype=np.uint8)
                np.frombuffer(memory[:size], dtype=np.uint8)[:] = source
                done += size
                if size < len(memory):
                    left.append(memory[size:])

    def read_parts(self, block: int, scratch: memoryview) -> Iterator[memoryview]:
        """Read a block part by part. Not collective.

        Parameters
        ----------
        scratch
            Memory of `scratch_memory`.

        Yields
        ------
        memoryview
            The bytes of a part, in `scratch`, until the next one is asked for.

        Raises
        ------
        CheckpointError
            If it cannot be read; or, after the last part, if it is not what was written.
        """
        start, stop = self.layout.extent(block)
        digest = xxhash.xxh3_64()
        for first in range(0, stop - start, PART_BYTES):
            part = self.read_part(block, first, scratch)
            digest.update(part)
            yield part
        self.verify(block, digest.hexdigest())

    def read_part(self, block: int, first: int, scratch: memoryview) -> memoryview:
        """Read a part of a block, and return its bytes, in `scratch`. Not collective.

        Parameters
        ----------
        first
            Where in the block it begins: a multiple of `PART_BYTES`.
        scratch
            Memory of `scratch_memory`.

        Raises
        ------
        CheckpointError
            If it cannot be read. Nothing is verified.
        """
        start, stop = self.layout.extent(block)
        size = min(PART_BYTES, stop - start - first)
        # In whole pages. At the end of the file the disk gives fewer bytes.
        memory = scratch[: whole_pages(size)]
        position = self.layout.header_bytes + start + first
        if self._is_cached(block):
            self._check(block, size, partial(self._file.read_cached, [memory], position))
        else:
            self._check(block, size, partial(self._file.read_past, memory, position))
        return scratch[:size]

    def verify(self, block: int, digest: str) -> None:
        """Compare a block that was read with what was written. Not collective.

        Parameters
        ----------
        digest
            The xxh3_64 of what was read, in hexadecimal digits.

        Raises
        ------
        CheckpointError
            If they differ. A file of another program has nothing to be compared with.
        """
        if self.layout.digests and digest != (wanted := self.layout.digests[block]):
            raise DamagedError(
                f"{self.path} is damaged: block {block} of {self.layout.blocks}, with "
                f"{self._contents(block)}, has digest {digest}, but {wanted} was written."
            )

    def _is_cached(self, block: int) -> bool:
        # To ask is not cheap, and once is enough for all its parts.
        if (found := self._was_cached.get(block)) is None:
            start, stop = self.layout.extent(block)
            found = self._file.is_cached(self.layout.header_bytes + start, stop - start)
            self._was_cached[block] = found
        return found

    def _read_cached(self, block: int, memories: Sequence[memoryview]) -> None:
        position = self.layout.header_bytes + self.layout.extent(block)[0]
        digest = xxhash.xxh3_64()
        for part in _parts(memories):
            wanted = sum(map(len, part))
            self._check(block, wanted, partial(self._file.read_cached, part, position))
            position += wanted
            for memory in part:
                digest.update(memory)
        self.verify(block, digest.hexdigest())

    def _check(self, block: int, wanted: int, read: Callable[[], int]) -> None:
        try:
            count = read()
        except OSError as error:
            raise self._unreadable(block, error) from error
        if count < wanted:
            raise self._torn(block)

    def _torn(self, block: int) -> DamagedError:
        return DamagedError(
            f"{self.path} is damaged: it ends before block {block} of {self.layout.blocks} does."
        )

    def _unreadable(self, block: int, error: OSError) -> CheckpointError:
        kind = UnreadableError if is_passing(error) else DamagedError
        return kind(
            f"{self.path} cannot be read in block {block} of {self.layout.blocks}, with "
            f"{self._contents(block)}: {error.strerror}."
        )

    def _contents(self, block: int) -> str:
        layout = self.layout
        # A rank that loads only part of a state knows only its part of the layout.
        with suppress(CheckpointError):
            layout = read_layout(self.path)
        start, stop = self.layout.extent(block)
        names = [
            chunk.name
            for chunk, at in zip(layout.chunks, layout.starts, strict=True)
            if at < stop and at + chunk.size > start
        ]
        rest = f" and {len(names) - 3} more tensors" if len(names) > 3 else ""
        return ", ".join(names[:3]) + rest


def _parts(memories: Sequence[memoryview]) -> Iterator[list[memoryview]]:
    """Yield memories, cut where a part of them would not stay in the cache until it is hashed."""
    part, room = list[memoryview](), HASHED_BYTES
    for memory in memories:
        while len(memory):
            part.append(memory[:room])
            memory, room = memory[room:], room - len(part[-1])
            if not room or len(part) == _IOV_MAX:
                yield part
                part, room = [], HASHED_BYTES
    if part:
        yield part
