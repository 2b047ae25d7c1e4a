"""Read a state's files block by block, into the memory they are for, and verified.

What the page cache has is read from there, straight into place. What it has not is read past it,
and copied into place while it is hashed: that takes less CPU time than to go through the page
cache, and does not push out what others have there.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType

import xxhash

from hpctrain.bulk.direct import FileReader
from hpctrain.bulk.ring import map_blocks
from hpctrain.bulk.state_file import (
    HASHED_BYTES,
    PAGE_BYTES,
    StateFile,
    file_digest,
    header_length,
)
from hpctrain.bulk.unreadable import UnreadableError, is_passing
from hpctrain.errors import CheckpointError

_IOV_MAX = 1024
_VERIFYING_THREADS = 2


class DamagedError(CheckpointError):
    """A block cannot be read, or is not what was written."""


@dataclass(frozen=True, kw_only=True)
class FileStart:
    """What a file of tensors begins with, and its size, both of the same moment."""

    path: Path
    header: bytes
    """The bytes before the data: fewer if the file ends there, or is of another kind."""
    size: int
    """Bytes of the whole file."""

    def layout(self) -> StateFile:
        """Return the layout that the header describes; see `StateFile.parse`. Not collective."""
        return StateFile.parse(self.header, size=self.size, name=str(self.path))


def read_start(path: Path) -> FileStart:
    """Return the first bytes of a file, up to its data, and its size. Not collective.

    Raises
    ------
    CheckpointError
        If it is missing, or cannot be read: `UnreadableError` if that may pass.
    """
    try:
        with open(path, "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            header = file.read(PAGE_BYTES)
            try:
                length = header_length(header[:8], name=str(path))
            except CheckpointError:
                # No safetensors file. Whoever asks for its layout is told so.
                length = len(header)
            while len(header) < length and (more := file.read(length - len(header))):
                header += more
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing.") from error
    except OSError as error:
        kind = UnreadableError if is_passing(error) else CheckpointError
        raise kind(f"{path} cannot be read: {error.strerror}.") from error
    return FileStart(path=path, header=header[:length], size=size)


def read_layout(path: Path) -> StateFile:
    """Return the layout of a file, with digests if it is one of ours. Not collective.

    Raises
    ------
    CheckpointError
        If it is missing, cannot be read, or is damaged.
    """
    return read_start(path).layout()


def verify_state_file(path: Path, digest: str, *, quick: bool = False) -> str | None:
    """Return how a file differs from what was written, or None. Not collective.

    Parameters
    ----------
    digest
        `file_digest` of what was written.
    quick
        Compare the size and the header only, which takes no time: what tells torn, truncated and
        exchanged files, not flipped bits.

    Raises
    ------
    UnreadableError
        If it cannot be read just now, so that nobody knows.
    """
    try:
        start = read_start(path)
        layout = start.layout()
        if (found := file_digest(start.header)) != digest:
            return f"{path} has a header of digest {found}, but {digest} was written."
        if quick or not layout.digests:
            return None
        with BlockReader(path, layout) as reader:
            threads = min(_VERIFYING_THREADS, layout.blocks)
            scratch: SimpleQueue[memoryview] = SimpleQueue()
            for _ in range(threads):
                scratch.put(scratch_memory())

            def verify(block: int) -> None:
                memory = scratch.get()
                try:
                    reader.read(block, memory)
                finally:
                    scratch.put(memory)

            with ThreadPoolExecutor(threads, thread_name_prefix="hpctrain-verify") as pool:
                try:
                    for _ in pool.map(verify, range(layout.blocks)):
                        pass
                except CheckpointError:
                    pool.shutdown(cancel_futures=True)
                    raise
    except UnreadableError:
        raise
    except CheckpointError as error:
        return str(error)
    return None


def scratch_memory() -> memoryview:
    """Return memory for one block. Not collective."""
    return map_blocks(1)


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
        try:
            # Of other programs' files, data begin anywhere.
            self._file = FileReader(path, aligned=layout.header_bytes % PAGE_BYTES == 0)
        except OSError as error:
            kind = UnreadableError if is_passing(error) else CheckpointError
            raise kind(f"{path} cannot be opened: {error.strerror}.") from error

    def __enter__(self) -> BlockReader:
        """Return itself."""
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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
            Memory of `scratch_memory`, which is used if the page cache has not got the block.

        Raises
        ------
        CheckpointError
            If it cannot be read, or is not what was written. The memories hold anything then.
        """
        if self._is_cached(block):
            self._read_cached(block, memories)
            return
        import numpy as np

        content, digest = self._read_past(block, scratch), xxhash.xxh3_64()
        for memory in itertools.chain.from_iterable(_parts(memories)):
            part, content = content[: len(memory)], content[len(memory) :]
            digest.update(part)
            # Unlike a copy of Python's own, it gives the lock away.
            np.frombuffer(memory, dtype=np.uint8)[:] = np.frombuffer(part, dtype=np.uint8)
        self._verify(block, digest.hexdigest())

    def read(self, block: int, scratch: memoryview) -> memoryview:
        """Read a block and return its bytes, the first ones of `scratch`. Not collective.

        Parameters
        ----------
        scratch
            Memory of `scratch_memory`.

        Raises
        ------
        CheckpointError
            If it cannot be read, or is not what was written.
        """
        start, stop = self.layout.extent(block)
        memory = scratch[: stop - start]
        if self._is_cached(block):
            self._read_cached(block, [memory])
        else:
            self._read_past(block, scratch)
            self._verify(block, xxhash.xxh3_64_hexdigest(memory))
        return memory

    def _is_cached(self, block: int) -> bool:
        start, stop = self.layout.extent(block)
        return self._file.is_cached(self.layout.header_bytes + start, stop - start)

    def _read_cached(self, block: int, memories: Sequence[memoryview]) -> None:
        position = self.layout.header_bytes + self.layout.extent(block)[0]
        digest = xxhash.xxh3_64()
        for part in _parts(memories):
            wanted = sum(map(len, part))
            self._check(block, wanted, partial(self._file.read_cached, part, position))
            position += wanted
            for memory in part:
                digest.update(memory)
        self._verify(block, digest.hexdigest())

    def _read_past(self, block: int, scratch: memoryview) -> memoryview:
        start, stop = self.layout.extent(block)
        # In whole pages. At the end of the file the disk gives fewer bytes.
        memory = scratch[: -(-(stop - start) // PAGE_BYTES) * PAGE_BYTES]
        position = self.layout.header_bytes + start
        self._check(block, stop - start, partial(self._file.read_past, memory, position))
        return memory[: stop - start]

    def _check(self, block: int, wanted: int, read: Callable[[], int]) -> None:
        try:
            count = read()
        except OSError as error:
            raise self._unreadable(block, error) from error
        if count < wanted:
            raise self._torn(block)

    def _verify(self, block: int, found: str) -> None:
        if self.layout.digests and found != (wanted := self.layout.digests[block]):
            raise DamagedError(
                f"{self.path} is damaged: block {block} of {self.layout.blocks}, with "
                f"{self._contents(block)}, has digest {found}, but {wanted} was written."
            )

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
        start, stop = self.layout.extent(block)
        names = [
            piece.name
            for piece, at in zip(self.layout.pieces, self.layout.starts, strict=True)
            if at < stop and at + piece.size > start
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
