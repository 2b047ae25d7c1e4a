"""`Ring`: memory that data pass through on their way to a disk, used again and again."""

from __future__ import annotations

import ctypes
import mmap
from contextlib import suppress
from queue import SimpleQueue
from typing import Protocol

from hpctrain.bulk.state_file import BLOCK_BYTES, PAGE_BYTES

_HUGE_PAGE_BYTES = 2 * 2**20


class BlockMemory(Protocol):
    """What a writer takes memory from, and gives it back to."""

    def take(self) -> memoryview:
        """Return a block that is not in use; waits until there is one. Not collective."""

    def give(self, block: memoryview) -> None:
        """Give a block back, in any thread. Not collective."""


class Ring:
    """Some blocks of memory, aligned to pages as O_DIRECT wants it, and faulted in once.

    The first use of memory costs several times what a copy into it costs, since the kernel finds
    and clears each page: make a ring once, and keep it. Any thread may take and give.

    Parameters
    ----------
    blocks
        Their number, of `BLOCK_BYTES` each. One is filled while others are being written.
    """

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.memory = map_pages(blocks * BLOCK_BYTES)
        """All of it, block after block."""
        self.memory[::PAGE_BYTES] = bytes(len(self.memory) // PAGE_BYTES)
        self._free: SimpleQueue[memoryview] = SimpleQueue()
        for first in range(0, len(self.memory), BLOCK_BYTES):
            self._free.put(self.memory[first : first + BLOCK_BYTES])

    def take(self) -> memoryview:
        """Return a block that is not in use; waits until one is given back. Not collective."""
        return self._free.get()

    def give(self, block: memoryview) -> None:
        """Give back what `take` returned. Not collective."""
        self._free.put(block)


def make_ring(blocks: int) -> Ring:
    """Return a ring of so many blocks, or of one where memory is short. Not collective."""
    try:
        return Ring(blocks)
    except (OSError, MemoryError):
        # Slower, since nothing is read while it is written.
        return Ring(1)


def map_pages(size: int) -> memoryview:
    """Return memory of so many bytes, on huge pages, that no child gets. Not collective.

    What is forked, like the workers of a loader, would otherwise make each page be copied at its
    next use, and what a disk reads into it past the page cache meanwhile may be lost (open(2),
    O_DIRECT). Pages come with their first use.
    """
    mapped = mmap.mmap(-1, size + _HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE)
    mapped.madvise(mmap.MADV_DONTFORK)
    # Kernels that are built without huge pages do not know it.
    with suppress(OSError):
        mapped.madvise(mmap.MADV_HUGEPAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
    start = -address % _HUGE_PAGE_BYTES
    return memoryview(mapped)[start : start + size]
