"""Copies a file into a commit, arm by arm in turns, and prints what each took.

Usage: copy_file.py FOLDER MIB SOURCE ROUNDS ARM...

SOURCE is ``cold``, on the disk only, or ``warm``, in the page cache. ARM is ``ours``; ``raw:one``,
which reads and writes block by block; ``raw:two``, which reads the next one meanwhile;
``raw:warm``, which writes from memory; or ``through the cache``.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import raw_disk
import xxhash

from hpctrain.rundir.bulk import Bulk
from hpctrain.rundir.shared_staging import SharedStaging

BLOCKS = 3


def main() -> None:
    """Copy in turns."""
    folder, mib, source, rounds, *arms = sys.argv[1:]
    scratch, commit = Path(folder, "scratch"), Path(folder, "commit")
    scratch.mkdir()
    saved = scratch / "model.pt"
    size = int(mib) * 2**20
    raw_disk.write_direct(saved, raw_disk.buffer(size))
    memory = raw_disk.buffer(size if source == "warm" else BLOCKS * raw_disk.BLOCK_BYTES)
    bulk = Bulk()
    actions: dict[str, Callable[[], object]] = {
        "ours": lambda: copy_ours(scratch, commit, bulk),
        "raw:one": lambda: copy_raw(saved, commit / "raw", memory, size, threads=0),
        "raw:two": lambda: copy_raw(saved, commit / "raw", memory, size, threads=1),
        "raw:warm": lambda: raw_disk.write_direct(commit / "raw", memory),
        "through the cache": lambda: copy_buffered(saved, commit / "buffered"),
    }
    for number in range(int(rounds) + 1):
        for arm in arms:
            shutil.rmtree(commit, ignore_errors=True)
            commit.mkdir()
            # Or this arm waits for the disk to forget the file of the one before it.
            os.sync()
            (raw_disk.make_cold if source == "cold" else raw_disk.make_warm)(saved)
            wall_s, cpu_s = raw_disk.timed(actions[arm])
            line = {"arm": arm, "round": number, "wall_s": wall_s, "cpu_s": cpu_s}
            print(json.dumps(line), flush=True)


def copy_ours(source: Path, target: Path, bulk: Bulk) -> None:
    """Copy and digest, as ranks do."""
    staging = SharedStaging(target, target / "own")
    staging.seal(bulk, written=staging.copy(source, bulk))


def copy_raw(source: Path, target: Path, memory: mmap.mmap, size: int, *, threads: int) -> None:
    """Copy past the page cache; with a thread, a block is written while the next is read."""
    blocks = [
        memoryview(memory)[start : start + raw_disk.BLOCK_BYTES]
        for start in range(0, BLOCKS * raw_disk.BLOCK_BYTES, raw_disk.BLOCK_BYTES)
    ]
    reader = os.open(source, os.O_RDONLY | os.O_DIRECT)
    writer = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o644)
    with ThreadPoolExecutor(1) as pool:
        written = []
        for number, start in enumerate(range(0, size, raw_disk.BLOCK_BYTES)):
            if threads and number >= BLOCKS:
                written[number - BLOCKS].result()
            block = blocks[number % BLOCKS]
            os.preadv(reader, [block], start)
            if threads:
                written.append(pool.submit(os.pwrite, writer, block, start))
            else:
                os.pwrite(writer, block, start)
    os.fsync(writer)
    os.close(reader)
    os.close(writer)


def copy_buffered(source: Path, target: Path) -> str:
    """Copy inside the kernel, and read the copy for its digest."""
    shutil.copyfile(source, target)
    digest = xxhash.xxh3_128()
    with open(target, "rb", buffering=0) as file:
        while block := file.read(raw_disk.BLOCK_BYTES):
            digest.update(block)
        os.fsync(file.fileno())
    return digest.hexdigest()


if __name__ == "__main__":
    main()
