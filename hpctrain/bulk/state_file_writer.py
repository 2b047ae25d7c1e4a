"""`write_state_file`: one writer's file of tensors, past the page cache."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import xxhash

from hpctrain.bulk.block_writer import BlockWriter
from hpctrain.bulk.ring import BlockMemory, Ring
from hpctrain.bulk.state_file import BLOCK_BYTES, StateFile, file_digest
from hpctrain.bulk.switch_interval import short_switch_interval
from hpctrain.errors import CheckpointError

# Two, so that the disk has the next block while Python lets go of the last one.
_THREADS = 2
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, kw_only=True)
class Written:
    """A file that is on disk."""

    path: Path
    size: int
    """Bytes."""
    digest: str
    """`hpctrain.bulk.state_file.file_digest` of its header, which stands for all of it."""


Fill = Callable[[int, memoryview], Iterable[int]]
"""Copies the data of a block, by its number, into memory; gives how many bytes are there, as they
become more. Parts of `HASHED_BYTES` are hashed before they leave the cache."""


def write_state_file(path: Path, layout: StateFile, fill: Fill, *, ring: Ring) -> Written:
    """Write a file of tensors, durably.

    Not collective. Blocks are filled and hashed in this thread, while others write. The header is
    written last: until then the first page holds zeros, which no reader takes for one. If the file
    cannot be written, it is removed.

    Parameters
    ----------
    path
        Of the file; one that is there is emptied. Its directory exists, and is
        written to the disk by its maker.
    layout
        What is in it.
    fill
        Called with each block's number, in order, and memory for it.
    ring
        Memory of two blocks or more.

    Raises
    ------
    CheckpointError
        If the disk is full or fails.
    """
    with short_switch_interval(awaited=True), StateFileWriter(path, layout, ring=ring) as writer:
        for block in range(layout.blocks):
            memory = ring.take()
            try:
                start, stop = layout.extent(block)
                content = memory[: stop - start]
                digest = _digest(content, fill(block, content))
            except BaseException:
                ring.give(memory)
                raise
            writer.put(block, memory, digest=digest)
        return writer.finish()


def _digest(memory: memoryview, reached: Iterable[int]) -> str:
    """Return the digest of memory that is being filled."""
    digest, done = xxhash.xxh3_64(), 0
    for stop in reached:
        digest.update(memory[done:stop])
        done = stop
    assert done == len(memory), f"{done} of {len(memory)} bytes were filled"
    return digest.hexdigest()


class StateFileWriter:
    """A file of tensors that is being written; a context, at whose end an unfinished one is gone.

    Parameters
    ----------
    path
        Of the file, which is replaced if there is one.
    layout
        What is in it.
    ring
        Where the memory of blocks comes from, and goes to once it is written.

    Raises
    ------
    CheckpointError
        If the file cannot be made.
    """

    def __init__(self, path: Path, layout: StateFile, *, ring: BlockMemory) -> None:
        self._path, self._layout, self._ring = path, layout, ring
        self._digests = [""] * layout.blocks
        self._finished = False
        with ExitStack() as undo:
            try:
                file = BlockWriter(path, layout.size, memory=ring, threads=_THREADS)
            except OSError as error:
                raise _explained(error, path, layout.size) from error
            undo.callback(self._remove_unfinished)
            undo.enter_context(short_switch_interval())
            self._file = undo.enter_context(file)
            self._exits = undo.pop_all()

    def put(self, block: int, memory: memoryview, *, digest: str | None = None) -> None:
        """Queue a filled block for writing. Not collective.

        Parameters
        ----------
        block
            Its number; they may come in any order.
        memory
            Its buffer, which returns to the ring once it is written.
        digest
            Digest of the block; None: it is hashed here.

        Raises
        ------
        CheckpointError
            If a block before it could not be written.
        """
        start, stop = self._layout.extent(block)
        size = stop - start
        self._digests[block] = digest or xxhash.xxh3_64_hexdigest(memory[:size])
        try:
            self._file.put(memory, self._layout.header_bytes + start, size)
        except OSError as error:
            raise self._explained(error) from error

    def finish(self) -> Written:
        """Wait for all blocks, write the header, and have all of it on disk. Not collective.

        Raises
        ------
        CheckpointError
            If something of it could not be written.
        """
        try:
            self._file.finish(self._layout.size)
            assert all(self._digests), "a block is missing"
            header = self._layout.header(self._digests)
            for start in range(0, len(header), BLOCK_BYTES):
                part = header[start : start + BLOCK_BYTES]
                memory = self._ring.take()
                memory[: len(part)] = part
                self._file.put(memory, start, len(part))
            self._file.sync()
        except OSError as error:
            raise self._explained(error) from error
        self._finished = True
        return Written(path=self._path, size=self._layout.size, digest=file_digest(header))

    def __enter__(self) -> StateFileWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()

    def _remove_unfinished(self) -> None:
        if not self._finished:
            self._path.unlink(missing_ok=True)

    def _explained(self, error: OSError) -> CheckpointError:
        return _explained(error, self._path, self._layout.size, written=self._file.written)


def _explained(error: OSError, path: Path, size: int, *, written: int = 0) -> CheckpointError:
    if error.errno in _NO_ROOM:
        todo = "Free some, or keep fewer checkpoints: CheckpointConfig(num_to_keep=...)"
    else:
        todo = "Look at the filesystem"
    return CheckpointError(
        f"{path} of {size} bytes could not be written: {error.strerror or error}, after {written} "
        f"bytes. {todo}; training can go on, and earlier checkpoints are whole."
    )
