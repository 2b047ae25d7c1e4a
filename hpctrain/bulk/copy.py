"""`Copier`: copies files, digested on their way, and past the page cache if they are large."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Literal, Protocol

import xxhash

from hpctrain.bulk.direct import LARGE_BYTES, FileReader, open_new, write_at
from hpctrain.bulk.pace import Pace
from hpctrain.bulk.ring import Ring, make_ring
from hpctrain.bulk.state_file import BLOCK_BYTES, PAGE_BYTES, StateFile, file_digest
from hpctrain.bulk.verify import read_state_header
from hpctrain.errors import CheckpointError

# One is read and digested while another is written; the third keeps either from waiting.
_BLOCKS = 3


@dataclass(frozen=True, kw_only=True)
class Copied:
    """A copy, as it was read."""

    size: int
    """Bytes."""
    digest: str
    """xxh3_128."""
    kind: Literal["content", "header"]
    """What the digest is of: the whole content, or the header of a state's file."""


class Copier:
    """Copies files one after the other, through memory that is used again.

    Parameters
    ----------
    pace
        How fast it may write; None is as fast as it can.
    """

    def __init__(self, pace: Pace | None = None) -> None:
        self._pace = pace
        self._lock = threading.Lock()
        self._ring: Ring | None = None

    def copy(self, source: Path, target: Path) -> Copied:
        """Copy a file's content into a new file. Not collective.

        What cannot be copied whole is not there afterwards. The copy is not durable before somebody
        calls fsync. Any thread may call this; one copies at a time.

        Raises
        ------
        OSError
            If one cannot be read, or the other not be written: a full disk, for instance.
        CheckpointError
            If a state's file is not what was saved, or cannot be read.
        """
        found = read_state_header(source)
        digest: _Digest = _ContentDigest() if found is None else _StateDigest(source, *found)
        with self._lock:
            try:
                if source.stat().st_size < LARGE_BYTES:
                    size = self._copy_small(source, target, digest)
                else:
                    size = self._copy_large(source, target, digest)
            except BaseException:
                target.unlink(missing_ok=True)
                raise
        return Copied(size=size, digest=digest.result(), kind=digest.kind)

    def _copy_small(self, source: Path, target: Path, digest: _Digest) -> int:
        content = source.read_bytes()
        size = 0
        for start, size in digest.extents(len(content)):
            digest.update(start, memoryview(content)[start:size])
        self._wait(size)
        target.write_bytes(content[:size])
        return size

    def _copy_large(self, source: Path, target: Path, digest: _Digest) -> int:
        size, copied = source.stat().st_size, 0
        ring = self._ring_of(size)
        with FileReader(source) as reader, _Writer(target, size, ring, self._wait) as writer:
            for start, stop in digest.extents(size):
                memory = ring.take()
                try:
                    read = reader.read(memory[: _pages(stop - start)], start)
                    count = min(read, stop - start)
                    digest.update(start, memory[:count])
                except BaseException:
                    ring.give(memory)
                    raise
                writer.put(start, memory, count)
                copied += count
            writer.finish(copied)
        return copied

    def _ring_of(self, size: int) -> Ring:
        blocks = min(_BLOCKS, -(-size // BLOCK_BYTES))
        if self._ring is None or self._ring.blocks < blocks:
            self._ring = None
            self._ring = make_ring(blocks)
        return self._ring

    def _wait(self, size: int) -> None:
        if self._pace is not None:
            self._pace.spend(size)


class _Writer:
    """A file that a thread of its own writes; a context, which waits for that and closes it."""

    def __init__(self, path: Path, size: int, ring: Ring, wait: Callable[[int], None]) -> None:
        self._ring, self._wait = ring, wait
        self._jobs: SimpleQueue[tuple[int, memoryview, int] | None] = SimpleQueue()
        self._error: BaseException | None = None
        self._descriptor = open_new(path, size)
        self._thread = threading.Thread(target=self._work, name="hpctrain-copy", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:
            # No memory for a stack: `put` writes.
            self._threaded = False
        else:
            self._threaded = True

    def put(self, position: int, memory: memoryview, size: int) -> None:
        """Have a block of the ring written, which is given back then."""
        whole = _pages(size)
        # The last page is written whole, as O_DIRECT wants it, and cut off later.
        memory[size:whole] = bytes(whole - size)
        if self._threaded:
            self._jobs.put((position, memory, whole))
        else:
            self._write(position, memory, whole)
        self._raise()

    def finish(self, size: int) -> None:
        """Wait until all is written, and let the file end after `size` bytes."""
        self._join()
        self._raise()
        os.ftruncate(self._descriptor, size)

    def __enter__(self) -> _Writer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._join()
        os.close(self._descriptor)

    def _join(self) -> None:
        if self._threaded:
            self._jobs.put(None)
            self._thread.join()
            self._threaded = False

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._write(*job)

    def _write(self, position: int, memory: memoryview, size: int) -> None:
        try:
            if self._error is None:
                self._wait(size)
                write_at(self._descriptor, memory[:size], position)
        except BaseException as error:
            self._error = error
        finally:
            self._ring.give(memory)


class _Digest(Protocol):
    """What is made of a file's blocks, in their order."""

    kind: Literal["content", "header"]

    def extents(self, size: int) -> Iterator[tuple[int, int]]:
        """Yield where blocks begin and end that are copied; they begin on pages.

        Parameters
        ----------
        size
            Bytes that the file has now.
        """

    def update(self, position: int, memory: memoryview) -> None:
        """Take in the block that begins there."""

    def result(self) -> str:
        """Return the digest."""


class _ContentDigest:
    """Of every byte."""

    kind: Literal["content", "header"] = "content"

    def __init__(self) -> None:
        self._digest = xxhash.xxh3_128()

    def extents(self, size: int) -> Iterator[tuple[int, int]]:
        return _split(0, size)

    def update(self, position: int, memory: memoryview) -> None:
        self._digest.update(memory)

    def result(self) -> str:
        return self._digest.hexdigest()


class _StateDigest:
    """Of the header, which has one of each block: so these are compared."""

    kind: Literal["content", "header"] = "header"

    def __init__(self, path: Path, layout: StateFile, header: bytes) -> None:
        self._path, self._layout, self._header = path, layout, header

    def extents(self, size: int) -> Iterator[tuple[int, int]]:
        yield from _split(0, self._layout.header_bytes)
        # Whatever the size is by now: what is missing differs, and what is more was not saved.
        yield from _split(self._layout.header_bytes, self._layout.size)

    def update(self, position: int, memory: memoryview) -> None:
        data = position - self._layout.header_bytes
        if data < 0:
            differs = self._header[position : position + len(memory)] != memory
        else:
            wanted = self._layout.digests[data // BLOCK_BYTES]
            differs = xxhash.xxh3_64_hexdigest(memory) != wanted
        if differs:
            raise CheckpointError(
                f"{self._path} is damaged: what begins at byte {position} is not what was saved. "
                f"Save again; if that happens more often, look at the disk of the node."
            )

    def result(self) -> str:
        return file_digest(self._header)


def _split(start: int, stop: int) -> Iterator[tuple[int, int]]:
    for first in range(start, stop, BLOCK_BYTES):
        yield first, min(first + BLOCK_BYTES, stop)


def _pages(size: int) -> int:
    """Return the next multiple of a page."""
    return -(-size // PAGE_BYTES) * PAGE_BYTES
