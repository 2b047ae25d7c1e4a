"""`Copier`: copies files, digested on their way, and past the page cache if they are large."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, Protocol

import xxhash

from hpctrain.bulk.block_writer import BlockWriter
from hpctrain.bulk.direct import LARGE_BYTES, FileReader
from hpctrain.bulk.header import read_state_header
from hpctrain.bulk.pace import Pace
from hpctrain.bulk.ring import Ring, make_ring
from hpctrain.bulk.state_file import BLOCK_BYTES, StateFile, file_digest, whole_pages
from hpctrain.errors import CheckpointError
from hpctrain.own_files import create_file
from hpctrain.regular_file import open_regular

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

        What cannot be copied whole is not there afterwards. The copy is not durable before the
        caller calls fsync. Any thread may call this; one copies at a time.

        Raises
        ------
        FileExistsError
            If there is a target already, which stays as it is.
        OSError
            If one cannot be read, or the other not be written: a full disk, for instance.
        CheckpointError
            If a state's file is not what was saved, or cannot be read.
        """
        found = read_state_header(source)
        digest: _Digest = _ContentDigest() if found is None else _StateDigest(source, *found)
        with self._lock:
            if source.stat().st_size < LARGE_BYTES:
                size = self._copy_small(source, target, digest)
            else:
                size = self._copy_large(source, target, digest)
        return Copied(size=size, digest=digest.result(), kind=digest.kind)

    def _copy_small(self, source: Path, target: Path, digest: _Digest) -> int:
        with open_regular(source, follow_links=True) as file:
            content = file.readall()
        size = 0
        for start, size in digest.extents(len(content)):
            digest.update(start, memoryview(content)[start:size])
        self._wait(size)
        with _new(target) as file:
            file.write(memoryview(content)[:size])
        return size

    def _copy_large(self, source: Path, target: Path, digest: _Digest) -> int:
        size, copied = source.stat().st_size, 0
        ring = self._ring_of(size)
        with (
            FileReader(source) as reader,
            # Takes the name, under which the writer makes a file that suits its size.
            _new(target),
            BlockWriter(target, size, memory=ring, threads=1, pace=self._pace) as writer,
        ):
            for start, stop in digest.extents(size):
                memory = ring.take()
                try:
                    read = reader.read(memory[: whole_pages(stop - start)], start)
                    count = min(read, stop - start)
                    digest.update(start, memory[:count])
                except BaseException:
                    ring.give(memory)
                    raise
                writer.put(memory, start, count)
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


@contextmanager
def _new(target: Path) -> Iterator[BinaryIO]:
    """Make a file that does not exist yet; remove it if it is not finished."""
    with open(create_file(target), "wb") as file:
        try:
            yield file
            file.flush()
        except BaseException:
            target.unlink(missing_ok=True)
            raise


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
