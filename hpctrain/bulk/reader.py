"""Read a state's files block by block, straight into the memory they are for, and verified.

What the page cache has is copied from there. What it has not is read past it: that costs an eighth
of the CPU time, and does not push out what others have there.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from errno import EAGAIN, EINVAL, EOPNOTSUPP
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType

import xxhash

from hpctrain.bulk.state_file import (
    BLOCK_BYTES,
    PAGE_BYTES,
    StateFile,
    file_digest,
    header_length,
)
from hpctrain.errors import CheckpointError

_IOV_MAX = 1024
# That is in the second level of the cache, also of older processors.
_PART_BYTES = 2**20
# Of blocks that are not in the page cache, until it is asked no longer.
_MISSES = 3
_VERIFYING_THREADS = 2


class DamagedError(CheckpointError):
    """A block cannot be read, or is not what was written."""


def read_header(path: Path) -> bytes:
    """Return the first bytes of a file, up to its data. Not collective.

    Raises
    ------
    CheckpointError
        If it is missing, cannot be read, or is no safetensors file.
    """
    try:
        with open(path, "rb", buffering=0) as file:
            header = file.read(PAGE_BYTES)
            length = header_length(header[:8], name=str(path))
            while len(header) < length and (more := file.read(length - len(header))):
                header += more
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing.") from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}.") from error
    return header[:length]


def read_layout(path: Path) -> StateFile:
    """Return the layout of a file, with digests if it is one of ours. Not collective.

    Raises
    ------
    CheckpointError
        If it is missing, cannot be read, or is damaged.
    """
    header = read_header(path)
    return StateFile.parse(header, size=path.stat().st_size, name=str(path))


def verify_state_file(path: Path, digest: str, *, quick: bool = False) -> str | None:
    """Return how a file differs from what was written, or None. Not collective.

    Parameters
    ----------
    digest
        `file_digest` of what was written.
    quick
        Compare the size and the header only, which takes no time: what tells torn, truncated and
        exchanged files, not flipped bits.
    """
    try:
        header = read_header(path)
        layout = StateFile.parse(header, size=path.stat().st_size, name=str(path))
        if (found := file_digest(header)) != digest:
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
    except CheckpointError as error:
        return str(error)
    return None


def scratch_memory() -> memoryview:
    """Return memory for one block, aligned to pages. Not collective."""
    memory = mmap.mmap(-1, BLOCK_BYTES, flags=mmap.MAP_PRIVATE)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)


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
        If it cannot be opened.
    """

    def __init__(self, path: Path, layout: StateFile) -> None:
        self.path = path
        self.layout = layout
        self._misses = 0
        self._direct = -1
        try:
            self._cached = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise CheckpointError(f"{path} cannot be opened: {error.strerror}.") from error
        in_memory = _is_in_memory(os.fstat(self._cached).st_dev)
        if not in_memory and layout.header_bytes % PAGE_BYTES == 0:
            try:
                self._direct = os.open(path, os.O_RDONLY | os.O_DIRECT)
            except OSError as error:
                if error.errno != EINVAL:
                    raise CheckpointError(f"{path} cannot be opened: {error.strerror}.") from error
        if self.reads_directly:
            # To ask for a page that is not in the page cache then reads that page, not as many as
            # the kernel thinks will be wanted next.
            os.posix_fadvise(self._cached, 0, 0, os.POSIX_FADV_RANDOM)

    @property
    def reads_directly(self) -> bool:
        """Whether what is not in the page cache is read past it."""
        return self._direct >= 0

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
        for descriptor in (self._cached, self._direct):
            if descriptor >= 0:
                os.close(descriptor)
        self._cached = self._direct = -1

    def read_into(self, block: int, memories: Sequence[memoryview]) -> bool:
        """Read a block into memories, one after the other, if the page cache has it.

        Not collective.

        Parameters
        ----------
        memories
            Writable bytes, as many together as the block has.

        Returns
        -------
        bool
            Whether it was read. If not, the memories hold anything, and `read` reads it.

        Raises
        ------
        CheckpointError
            If it cannot be read, or is not what was written. The memories hold anything then.
        """
        if self.reads_directly and self._misses >= _MISSES:
            return False
        if not (self._is_cached(block) and self._read_cached(block, memories)):
            self._misses += 1
            return False
        return True

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
        if not self.read_into(block, [memory]):
            self._read_direct(block, scratch)
            if self.layout.digests:
                self._verify(block, xxhash.xxh3_64_hexdigest(memory))
        return memory

    def _is_cached(self, block: int) -> bool:
        """Return whether the page cache has the ends of a block; True if there is no other way."""
        if not self.reads_directly:
            return True
        start, stop = self.layout.extent(block)
        byte = bytearray(1)
        try:
            for position in (start, stop - 1):
                os.preadv(self._cached, [byte], self.layout.header_bytes + position, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno in (EAGAIN, EOPNOTSUPP):
                return False
            raise self._unreadable(block, error) from error
        return True

    def _read_cached(self, block: int, memories: Sequence[memoryview]) -> bool:
        """Read through the page cache; not from the disk if that can be read past it."""
        position = self.layout.header_bytes + self.layout.extent(block)[0]
        flags = os.RWF_NOWAIT if self.reads_directly else 0
        digest = xxhash.xxh3_64()
        try:
            for part in _parts(memories):
                wanted = part
                while wanted:
                    count = os.preadv(self._cached, wanted, position, flags)
                    if count == 0:
                        raise self._torn(block)
                    position += count
                    wanted = _after(wanted, count)
                if self.layout.digests:
                    for memory in part:
                        digest.update(memory)
        except OSError as error:
            if flags and error.errno in (EAGAIN, EOPNOTSUPP):
                return False
            raise self._unreadable(block, error) from error
        self._verify(block, digest.hexdigest())
        return True

    def _read_direct(self, block: int, scratch: memoryview) -> None:
        start, stop = self.layout.extent(block)
        # In whole pages. At the end of the file the disk gives fewer bytes.
        done, asked = 0, -(-(stop - start) // PAGE_BYTES) * PAGE_BYTES
        try:
            while done < stop - start:
                position = self.layout.header_bytes + start + done
                count = os.preadv(self._direct, [scratch[done:asked]], position)
                if count == 0:
                    raise self._torn(block)
                done += count
        except OSError as error:
            raise self._unreadable(block, error) from error

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

    def _unreadable(self, block: int, error: OSError) -> DamagedError:
        return DamagedError(
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
    part, room = list[memoryview](), _PART_BYTES
    for memory in memories:
        while len(memory):
            part.append(memory[:room])
            memory, room = memory[room:], room - len(part[-1])
            if not room or len(part) == _IOV_MAX:
                yield part
                part, room = [], _PART_BYTES
    if part:
        yield part


def _after(memories: list[memoryview], count: int) -> list[memoryview]:
    """Return what is left of memories when some bytes of them are filled."""
    for index, memory in enumerate(memories):
        if count < len(memory):
            return [memory[count:], *memories[index + 1 :]]
        count -= len(memory)
    return []


def _is_in_memory(device: int) -> bool:
    """Return whether a filesystem, by its device, has no disk behind it."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return False
    mounts = (line.split() for line in lines)
    return any(m[2] == wanted and m[m.index("-") + 1] in ("tmpfs", "ramfs") for m in mounts)
