"""What the disk and the memory can do, without anything that a checkpoint needs besides.

Buffers are mapped and touched before anything is measured. Times are wall seconds; CPU seconds are
those of the process.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import numpy as np
import xxhash

BLOCK_BYTES = 8 * 2**20
PART_BYTES = 2 * 2**20


def buffer(size: int) -> mmap.mmap:
    """Return memory on huge pages, all of which is there."""
    # Memory that is shared has none, as a rule: past the page cache it is read into at a third of
    # the speed, and written from at two thirds.
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE)
    memory.madvise(mmap.MADV_HUGEPAGE)
    for start in range(0, size, 4096):
        memory[start] = start // 4096 % 251
    return memory


def timed(action: Callable[[], object]) -> tuple[float, float]:
    """Return wall and CPU seconds of a call."""
    before, begin = cpu_s(), time.perf_counter()
    action()
    return time.perf_counter() - begin, cpu_s() - before


def cpu_s() -> float:
    """Return the CPU seconds of this process."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def write_direct(path: Path, memory: mmap.mmap, *, threads: int = 1) -> None:
    """Write past the page cache, in blocks, and wait until the disk has all."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_DIRECT, 0o644)
    try:
        _in_threads(lambda start, view: os.pwrite(descriptor, view, start), memory, threads=threads)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_direct(path: Path, memory: mmap.mmap, *, threads: int = 1) -> None:
    """Read past the page cache, in blocks."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        _in_threads(
            lambda start, view: os.preadv(descriptor, [view], start), memory, threads=threads
        )
    finally:
        os.close(descriptor)


def read_verified(path: Path, memory: memoryview, *, threads: int = 1) -> None:
    """Read past the page cache, hash, copy into memory, and do nothing else.

    It is the least that a verified resume can cost: tensors begin where no disk reads to.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    scratch: SimpleQueue[mmap.mmap] = SimpleQueue()
    for _ in range(threads):
        scratch.put(buffer(PART_BYTES))

    def read(start: int, view: memoryview) -> int:
        part, digest = scratch.get(), xxhash.xxh3_64()
        for first in range(0, len(view), PART_BYTES):
            assert os.preadv(descriptor, [part], start + first) == PART_BYTES
            digest.update(part)
            np.frombuffer(view[first : first + PART_BYTES], np.uint8)[:] = np.frombuffer(
                part, np.uint8
            )
        scratch.put(part)
        return len(view)

    try:
        _in_threads(read, memory, threads=threads)
    finally:
        os.close(descriptor)


def read_buffered(path: Path, memory: mmap.mmap, *, threads: int = 1) -> None:
    """Read through the page cache, in blocks."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        _in_threads(
            lambda start, view: os.preadv(descriptor, [view], start), memory, threads=threads
        )
    finally:
        os.close(descriptor)


def copy(target: mmap.mmap, source: mmap.mmap) -> None:
    """Copy memory that is mapped on both sides: the least that a snapshot can cost."""
    size = len(source)
    to = ctypes.addressof(ctypes.c_char.from_buffer(target))
    of = ctypes.addressof(ctypes.c_char.from_buffer(source))
    ctypes.memmove(to, of, size)


def make_cold(path: Path) -> None:
    """Write a file's pages to the disk, and drop them from the page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def make_warm(path: Path) -> None:
    """Bring a file into the page cache."""
    with open(path, "rb", buffering=0) as file:
        while file.read(BLOCK_BYTES):
            pass


def _in_threads(
    call: Callable[[int, memoryview], int], memory: mmap.mmap | memoryview, *, threads: int
) -> None:
    view = memoryview(memory)
    starts = range(0, len(view), BLOCK_BYTES)

    def do(start: int) -> None:
        part = view[start : start + BLOCK_BYTES]
        done = call(start, part)
        assert done == len(part), f"{done} of {len(part)} bytes"

    if threads == 1:
        for start in starts:
            do(start)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(do, starts))
